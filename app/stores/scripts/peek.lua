-- What a submit must know beforehand: the conversation's agent and its last turn's number.
-- ARGV: ref
return redis.call('HMGET', key('conversation', ref), 'agent', 'turns', 'record')
