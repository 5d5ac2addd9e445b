-- Return the agent, the number of the last turn, the record and the settings of a conversation.
-- ARGV: ref
local found = redis.call('HMGET', key('conversation', ref), 'agent', 'record', 'settings')
if not found[1] then check_not_damaged(ref) return {} end
return {found[1], count_turns(ref), found[2], found[3]}
