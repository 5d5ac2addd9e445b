-- A process that lives had lost the store: what else was lost meanwhile need not be the fault of a turn.
-- ARGV: lease_us
redis.call('SET', partition .. ':outage', now(), 'PX', math.ceil(lease_us / 1000) * 10)
return {'ok'}
