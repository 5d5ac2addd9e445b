-- Return the agent, the number of the last turn and the record of a conversation.
-- ARGV: ref
local found = redis.call('HMGET', key('conversation', ref), 'agent', 'record')
if not found[1] then check_not_damaged(ref) return {} end
return {found[1], count_turns(ref), found[2]}
