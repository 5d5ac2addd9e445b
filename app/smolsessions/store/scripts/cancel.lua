-- Stop a turn. One that nobody has begun ends here and now, with `record`; else its worker is told, and finds the flag when
-- it renews its lease or claims the turn again.
-- ARGV: ref turn record me log_ttl_s
local conversation, run = key('conversation', ref), key('run', ref, turn)
if redis.call('EXISTS', run) == 0 then return {'over'} end
if redis.call('HEXISTS', run, 'started') == 1 then
  stop(ref, turn, '1')
  return {'told'}
end
local agent = redis.call('HGET', conversation, 'agent') or damaged('conversation')
check_logs(ref)
redis.call('LSET', key('turns', ref), turn - 1, record)
if redis.call('LINDEX', key('queue', ref), 0) == turn then note_moment(ref, turn) end  -- else it counts as the one before it
redis.call('LREM', key('queue', ref), 1, turn)
redis.call('HSET', conversation, 'updated', now())
if redis.call('LLEN', key('queue', ref)) == 0 then leave(agent, ref) end
local seq = append(ref, turn, 'turn.cancelled', '', record, me)
close(ref, turn, log_ttl_s)
return {'ended', seq}
