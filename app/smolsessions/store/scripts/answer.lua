-- Record answers to a waiting turn, if its record is as read and its log has `logged` entries. `answers` are the journal's keys and
-- sealed effects. After the last answer (`expires` is empty) the conversation is ready. Otherwise the wait expires then.
-- `answers` may be empty: then the turn goes on without one.
-- ARGV: ref turn read record logged event own_channel expires wake ...answers
local run, journal, log, at = key('run', ref, turn), key('journal', ref, turn), key('log', ref, turn), now()
if redis.call('LINDEX', key('turns', ref), turn - 1) ~= read or redis.call('LLEN', log) ~= tonumber(logged) then return {'moved'} end
if not waits_until(ref, turn) then return {'moved'} end
local effects = parse_int(redis.call('HGET', run, 'effects') or '0') or damaged('run')
for i = 1, #answers, 2 do effects = effects + redis.call('HSETNX', journal, answers[i], answers[i + 1]) end
local seq = 0
if #answers > 0 then
  redis.call('HSET', run, 'effects', effects)
  redis.call('LSET', key('turns', ref), turn - 1, record)
  redis.call('HSET', key('conversation', ref), 'updated', at)
  touch(ref, at)
  seq = append(ref, turn, 'input.answered', event, event, own_channel)
end
if expires == '' then
  end_wait(ref, turn, wake)
else
  redis.call('HSET', run, 'waits', expires)
  redis.call('ZADD', waiting, expires, ref)
end
return {'ok', seq}
