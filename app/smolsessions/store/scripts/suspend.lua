-- Let a claimed turn wait for a person: append its last writes, replace its record, release its lease. It is not ready.
-- - A repeated request with the same fence returns `done`. A turn that is to stop does not wait: the reply has its flag.
-- - `entries` are the last writes, from number `serial` on. `written` is the number of writes of this claim: if the store has
--   fewer, it lost acknowledged writes. `expires` is the time at which the wait ends by itself, in microseconds.
-- ARGV: ref turn fence own_channel record expires written serial ...entries
local conversation, run, at = key('conversation', ref), key('run', ref, turn), now()
if not holds_lease(ref, fence) then
  if redis.call('HGET', run, 'suspended') == fence then return {'done'} end
  return {'lost'}
end
local flag = redis.call('HGET', run, 'cancel')
if flag then return {'stopped', flag} end
local state, seqs = append_writes(ref, turn, own_channel, serial, entries)
if state ~= 'ok' then return {state} end
local stored_writes = parse_int(redis.call('HGET', run, 'written') or '0') or damaged('run')
if stored_writes < tonumber(written) then return {'behind'} end
delete_wrong_type('zset', waiting)
redis.call('LSET', key('turns', ref), turn - 1, record)
redis.call('HSET', run, 'suspended', fence, 'waits', expires, 'waits_since', at)
redis.call('HDEL', run, 'counted')
redis.call('HDEL', conversation, 'fence')
redis.call('HSET', conversation, 'updated', at)
touch(ref, at)
redis.call('ZREM', leases, ref)
redis.call('ZADD', waiting, expires, ref)
return {'ok', seqs}
