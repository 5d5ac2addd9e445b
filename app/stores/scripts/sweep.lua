-- Put conversations whose lease expired back into the ready set. A sweep that finds its own last beat long ago, or none (the
-- server stood still, or nobody was there) extends all leases instead, since their owners had no chance to. `all`: no other
-- process can have been there, so every lease is over. An attempt that began and was lost before it wrote an effect counts, unless
-- a process that lives had lost the store meanwhile; one that got on clears what was counted.
-- Conversations whose time to live is over go.
-- ARGV: lease_us all wake tombstone_s
local beat, at, taken = partition .. ':beat', now(), {}
local last = redis.call('GETSET', beat, at)
if all ~= '1' and (not last or at - last > lease_us / 2) then
  for _, ref in ipairs(redis.call('ZRANGE', leases, 0, -1)) do
    redis.call('ZADD', leases, 'XX', at + lease_us, ref)
  end
  return taken
end
for _, ref in ipairs(redis.call('ZRANGEBYSCORE', partition .. ':expiring', '-inf', at, 'LIMIT', 0, 100)) do
  if redis.call('LLEN', key('queue', ref)) == 0 then
    take_away(ref, string.match(ref, '^(.*)/'), tombstone_s)
  else
    touch(ref)
  end
end
local outage = all ~= '1' and tonumber(redis.call('GET', partition .. ':outage') or 0) or 0
for _, ref in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', all == '1' and '+inf' or at, 'LIMIT', 0, 100)) do
  redis.call('ZREM', leases, ref)
  redis.call('HDEL', key('conversation', ref), 'fence')
  local turn = redis.call('LINDEX', key('queue', ref), 0)
  if turn then
    local run = redis.call('HMGET', key('run', ref, turn), 'effects', 'effects_at', 'attempts', 'claimed')
    local began = redis.call('HEXISTS', key('journal', ref, turn), 'started:' .. (run[3] or '')) == 1
    if (run[1] or '0') ~= (run[2] or '0') then
      redis.call('HDEL', key('run', ref, turn), 'counted')
    elseif began and tonumber(run[4]) > outage then
      redis.call('HINCRBY', key('run', ref, turn), 'counted', 1)
    end
    make_ready(ref, wake)
    taken[#taken + 1] = ref
  end
end
return taken
