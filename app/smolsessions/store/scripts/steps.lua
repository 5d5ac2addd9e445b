-- Steps from index `first` to `last` of the current generation, how many there are, and how many turns run or wait.
-- ARGV: ref first last
local head = redis.call('HMGET', key('conversation', ref), 'agent', 'generation', 'head', 'terms', 'record')
if not head[1] then check_missing(ref) return false end
local steps = key('steps', ref, head[2] or '')
return {head[1], head[2] or '', head[3] or '', redis.call('LRANGE', steps, first, last), head[4] or '',
  redis.call('LLEN', steps), redis.call('LLEN', key('queue', ref)), head[5] or ''}
