-- Return steps from index `first` to `last` with agent, generation, head, settings, number of steps, number of open turns, record.
-- ARGV: ref first last
local head = redis.call('HMGET', key('conversation', ref), 'agent', 'generation', 'head', 'settings', 'record')
if not head[1] then check_not_damaged(ref) return false end
local steps = key('steps', ref, head[2] or '')
return {head[1], head[2] or '', head[3] or '', redis.call('LRANGE', steps, first, last), head[4] or '',
  redis.call('LLEN', steps), redis.call('LLEN', key('queue', ref)), head[5] or ''}
