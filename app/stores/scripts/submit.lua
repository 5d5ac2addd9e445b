-- Accept a turn: conversation (made if `conversation` holds its record), turn record, queue, log, ready set, at once.
-- The caller sealed the record for turn number `turn` of `agent`; where that is not what comes next it is told what is.
-- ARGV: owner ref agent conversation turn record input event me wake
local found = redis.call('HMGET', key('conversation', ref), 'agent', 'turns')
if not found[1] then
  if conversation == '' then return {'unknown'} end
  if redis.call('EXISTS', key('conversation', ref)) == 1 then return {'deleted'} end
  if turn ~= '1' then return {'unknown'} end
  create(owner, ref, agent, conversation)
else
  if redis.call('LINDEX', key('turns', ref), -1) == record then return {'ok', 1} end  -- asked again: the answer was lost
  local waiting = redis.call('LINDEX', key('queue', ref), -1)
  if waiting then return {'busy', waiting} end
  if agent ~= found[1] or tonumber(turn) ~= found[2] + 1 then return {'moved'} end
end
redis.call('HSET', key('conversation', ref), 'turns', turn, 'updated', now())
redis.call('RPUSH', key('turns', ref), record)
redis.call('RPUSH', key('queue', ref), turn)
redis.call('HSET', key('run', ref, turn), 'input', input)
redis.call('SADD', key('watch', ref, turn), me)
local seq = append(ref, turn, 'turn.queued', event, event, me)
make_ready(ref, wake)
return {'ok', seq}
