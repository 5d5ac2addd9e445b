-- What a submit must know beforehand: the conversation's agent and its last turn's number.
-- ARGV: ref
local found = redis.call('HMGET', key('conversation', ref), 'agent', 'record')
if not found[1] then check_missing(ref) return {} end
return {found[1], turns_of(ref), found[2]}
