-- Return a turn's record, the length of its log, its start and attempts if it is open, whether it waits, and terms.
-- ARGV: ref turn
if tonumber(turn) > count_turns(ref) then return false end
local run = redis.call('HMGET', key('run', ref, turn), 'started', 'attempts', 'waits')
return {redis.call('LINDEX', key('turns', ref), turn - 1), redis.call('LLEN', key('log', ref, turn)), run[1] or '', run[2] or '',
  run[3] and 1 or 0, redis.call('HGET', key('conversation', ref), 'terms') or ''}
