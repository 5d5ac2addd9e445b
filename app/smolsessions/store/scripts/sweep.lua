-- Make conversations with an expired lease ready, and delete conversations whose time to live is over.
-- - If the last sweep was long ago, or none was (the server or all processes stood still), all leases are extended instead, as
--   their workers had no chance to renew them. So they are if the clock went back: otherwise the lease of a dead worker
--   would last until the clock has caught up. `all` 1: no other process exists, so all leases are over.
-- - An attempt that started and wrote no effect is counted against its turn, unless a living process had lost the store. An
--   attempt with a new effect clears the count.
-- - A damaged conversation loses its lease. The next claim finds the damage.
-- - A turn whose wait for a person is over goes on. Its journal notes which requests have expired.
-- Returns the conversations that became ready, and names that were removed as damaged.
-- ARGV: lease_us all wake tombstone_s
local at, ready, removed, expiring = now(), {}, {}, partition .. ':expiring'
local MAX_EXTENDED = 10000

local function expire(ref)
  local fields = redis.call('HMGET', key('conversation', ref), 'expires', 'deleted')
  local expires = parse_int(fields[1])
  if not expires or fields[2] then
    redis.call('ZREM', expiring, ref)
    removed[#removed + 1] = ref
  elseif expires > at then
    redis.call('ZADD', expiring, expires, ref)
  elseif redis.call('LLEN', key('queue', ref)) == 0 then
    delete_conversation(ref, string.match(ref, '^(.*)/'), tombstone_s)
  else
    refresh_ttl(ref)
  end
end

local function count_attempt(ref, turn, outage)
  local run = redis.call('HMGET', key('run', ref, turn), 'effects', 'effects_at', 'attempts', 'claimed')
  local began = redis.call('HEXISTS', key('journal', ref, turn), 'started:' .. (run[3] or '')) == 1
  if (run[1] or '0') ~= (run[2] or '0') then
    redis.call('HDEL', key('run', ref, turn), 'counted')
  elseif began and parse_int(run[4]) > outage then
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
  ready[#ready + 1] = ref
end

local function expire_wait(ref)
  local turn = first_turn(ref)
  local until_us = waits_until(ref, turn)
  if not until_us then
    redis.call('ZREM', waiting, ref)
  elseif until_us > at then
    redis.call('ZADD', waiting, until_us, ref)
  else
    redis.call('HSET', key('journal', ref, turn), string.format('expired:%.0f', at), '')
    end_wait(ref, turn, wake)
    ready[#ready + 1] = ref
  end
end

delete_wrong_type('zset', leases, removed)
delete_wrong_type('zset', expiring, removed)
local last = redis.pcall('GET', partition .. ':beat')
redis.call('SET', partition .. ':beat', at)
last = type(last) == 'string' and parse_int(last)
if all ~= '1' and (not last or at < last or at - last > lease_us / 2) then
  for _, ref in ipairs(redis.call('ZRANGE', leases, 0, MAX_EXTENDED - 1)) do
    redis.call('ZADD', leases, 'XX', at + lease_us, ref)
  end
  return {ready, removed}
end
for _, ref in ipairs(redis.call('ZRANGEBYSCORE', expiring, '-inf', at, 'LIMIT', 0, 100)) do
  if not pcall(expire, ref) then
    redis.call('ZREM', expiring, ref)
    removed[#removed + 1] = ref
  end
end
delete_wrong_type('zset', waiting, removed)
for _, ref in ipairs(redis.call('ZRANGEBYSCORE', waiting, '-inf', at, 'LIMIT', 0, 100)) do
  if not pcall(expire_wait, ref) then
    redis.call('ZREM', waiting, ref)
    removed[#removed + 1] = ref
  end
end
local outage = all ~= '1' and redis.pcall('GET', partition .. ':outage')
outage = type(outage) == 'string' and parse_int(outage) or 0
for _, ref in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', all == '1' and '+inf' or at, 'LIMIT', 0, 100)) do
  redis.call('ZREM', leases, ref)
  if not pcall(take_back, ref, outage) then removed[#removed + 1] = ref end
end
return {ready, removed}
