-- Steps from index `first` to `last` of the current generation.
-- ARGV: ref first last
local head = redis.call('HMGET', key('conversation', ref), 'agent', 'generation', 'head', 'terms')
if not head[1] then return false end
return {head[1], head[2], head[3] or '', redis.call('LRANGE', key('steps', ref, head[2]), first, last), head[4] or ''}
