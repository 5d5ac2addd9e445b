-- Record that a living process has lost the store: leases that expire now need not be the fault of their turns.
-- ARGV: lease_us
redis.call('SET', partition .. ':outage', now(), 'PX', math.ceil(lease_us / 1000) * 10)
return {'ok'}
