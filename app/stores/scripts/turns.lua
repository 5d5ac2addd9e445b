-- Turn records from `first` to `last`, and what is known of those that are not over.
-- ARGV: ref first last
if not redis.call('HGET', key('conversation', ref), 'agent') then return false end
local open = {}
for _, turn in ipairs(redis.call('LRANGE', key('queue', ref), 0, -1)) do
  local run = redis.call('HMGET', key('run', ref, turn), 'started', 'attempts')
  open[#open + 1] = {turn, run[1] or '', run[2] or ''}
end
local about = redis.call('HMGET', key('conversation', ref), 'terms', 'turns')
return {redis.call('LRANGE', key('turns', ref), first - 1, last - 1), open, about[1] or '', about[2]}
