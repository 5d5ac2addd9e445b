-- Put conversations whose lease expired back into the ready set. A sweep that finds its own last beat long ago, or none (the
-- server stood still, or nobody was there) extends all leases instead, since their owners had no chance to. `all`: no other
-- process can have been there, so every lease is over. An attempt that began and was lost before it wrote an effect counts, unless
-- a process that lives had lost the store meanwhile; one that got on clears what was counted.
-- Conversations whose time to live is over go. A damaged conversation stops no other: it loses its lease, and the next claim finds
-- what is wrong. The answer names those that were made ready, and what was thrown away.
-- ARGV: lease_us all wake tombstone_s
local at, taken, thrown, expiring = now(), {}, {}, partition .. ':expiring'
local MOST_EXTENDED = 10000

local function expire(ref)
  local fields = redis.call('HMGET', key('conversation', ref), 'expires', 'deleted')
  local expires = whole(fields[1])
  if not expires or fields[2] then
    redis.call('ZREM', expiring, ref)
    thrown[#thrown + 1] = ref
  elseif expires > at then
    redis.call('ZADD', expiring, expires, ref)
  elseif redis.call('LLEN', key('queue', ref)) == 0 then
    take_away(ref, string.match(ref, '^(.*)/'), tombstone_s)
  else
    touch(ref)
  end
end

local function count_attempt(ref, turn, outage)
  local run = redis.call('HMGET', key('run', ref, turn), 'effects', 'effects_at', 'attempts', 'claimed')
  local began = redis.call('HEXISTS', key('journal', ref, turn), 'started:' .. (run[3] or '')) == 1
  if (run[1] or '0') ~= (run[2] or '0') then
    redis.call('HDEL', key('run', ref, turn), 'counted')
  elseif began and whole(run[4]) > outage then
    redis.call('HINCRBY', key('run', ref, turn), 'counted', 1)
  end
end

local function take_back(ref, outage)
  redis.call('HDEL', key('conversation', ref), 'fence')
  if redis.call('HEXISTS', key('conversation', ref), 'agent') == 0 then return end
  local turn = redis.pcall('LINDEX', key('queue', ref), 0)
  if not turn then return end
  pcall(count_attempt, ref, turn, outage)
  make_ready(ref, wake)
  taken[#taken + 1] = ref
end

delete_unless('zset', leases, thrown)
delete_unless('zset', expiring, thrown)
local last = redis.pcall('GET', partition .. ':beat')
redis.call('SET', partition .. ':beat', at)
last = type(last) == 'string' and whole(last)
if all ~= '1' and (not last or at - last > lease_us / 2) then
  for _, ref in ipairs(redis.call('ZRANGE', leases, 0, MOST_EXTENDED - 1)) do
    redis.call('ZADD', leases, 'XX', at + lease_us, ref)
  end
  return {taken, thrown}
end
for _, ref in ipairs(redis.call('ZRANGEBYSCORE', expiring, '-inf', at, 'LIMIT', 0, 100)) do
  if not pcall(expire, ref) then
    redis.call('ZREM', expiring, ref)
    thrown[#thrown + 1] = ref
  end
end
local outage = all ~= '1' and redis.pcall('GET', partition .. ':outage')
outage = type(outage) == 'string' and whole(outage) or 0
for _, ref in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', all == '1' and '+inf' or at, 'LIMIT', 0, 100)) do
  redis.call('ZREM', leases, ref)
  if not pcall(take_back, ref, outage) then thrown[#thrown + 1] = ref end
end
return {taken, thrown}
