-- Return a turn's record, the length of its log, its start and attempts if it is open, whether it waits, and settings. Returns
-- nothing without the conversation, and an empty list without the turn.
-- ARGV: ref turn
local about = redis.call('HMGET', key('conversation', ref), 'agent', 'settings')
if not about[1] then check_not_damaged(ref) return false end
if tonumber(turn) > count_turns(ref) then return {} end
local run = redis.call('HMGET', key('run', ref, turn), 'started', 'attempts', 'waits')
return {redis.call('LINDEX', key('turns', ref), turn - 1), redis.call('LLEN', key('log', ref, turn)), run[1] or '', run[2] or '',
  run[3] and 1 or 0, about[2] or ''}
