-- Put conversations whose lease expired back into the ready set. A sweep that finds its own last beat long ago, or none (the
-- server stood still, or nobody was there) extends all leases instead, since their owners had no chance to.
-- ARGV: lease_us wake
local beat, at, taken = partition .. ':beat', now(), {}
local last = redis.call('GETSET', beat, at)
if not last or at - last > lease_us / 2 then
  for _, ref in ipairs(redis.call('ZRANGE', leases, 0, -1)) do
    redis.call('ZADD', leases, 'XX', at + lease_us, ref)
  end
  return taken
end
for _, ref in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', at, 'LIMIT', 0, 100)) do
  redis.call('ZREM', leases, ref)
  redis.call('HDEL', key('conversation', ref), 'fence')
  if redis.call('LLEN', key('queue', ref)) > 0 then
    make_ready(ref, wake)
    taken[#taken + 1] = ref
  end
end
return taken
