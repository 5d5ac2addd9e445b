-- Cancel a turn. A turn that has not started ends at once, with `record`. Otherwise its worker gets a message, and finds the
-- flag when it renews its lease or claims the turn again. One whose message is about to join a running turn is stopped if it runs.
-- ARGV: ref turn record own_channel wake log_ttl_s
local conversation, run = key('conversation', ref), key('run', ref, turn)
if redis.call('EXISTS', run) == 0 then
  if first_turn(ref) ~= turn then return {'over'} end
  end_wait(ref, turn, wake)  -- damaged: the next claim finds out
  return {'requested'}
end
if redis.call('HEXISTS', run, 'started') == 1 then
  request_stop(ref, turn, '1', wake)
  return {'requested'}
end
if redis.call('HEXISTS', run, 'taken') == 1 then
  redis.call('HSET', run, 'cancel', '1')
  return {'requested'}
end
local agent = redis.call('HGET', conversation, 'agent') or damaged('conversation')
check_logs(ref)
redis.call('LSET', key('turns', ref), turn - 1, record)
if redis.call('LINDEX', key('queue', ref), 0) == turn then keep_head(ref, turn) end  -- else the turn before it counts
redis.call('LREM', key('queue', ref), 1, turn)
local at = now()
redis.call('HSET', conversation, 'updated', at)
touch(ref, at)
if redis.call('LLEN', key('queue', ref)) == 0 then remove_ready(agent, ref) end
local seq = append(ref, turn, 'turn.cancelled', '', record, own_channel)
close_turn(ref, turn, log_ttl_s)
return {'ended', seq}
