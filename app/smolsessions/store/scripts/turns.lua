-- Turn records from `first` to `last`, and what is known of those that are not over.
-- ARGV: ref first last
local about = redis.call('HMGET', key('conversation', ref), 'agent', 'terms')
if not about[1] then check_missing(ref) return false end
local open, stored = {}, turns_of(ref)
local queue = redis.call('LRANGE', key('queue', ref), 0, MOST_QUEUED)
if #queue > MOST_QUEUED then damaged('queue') end
for _, turn in ipairs(queue) do
  local run = redis.call('HMGET', key('run', ref, turn), 'started', 'attempts')
  open[#open + 1] = {turn, run[1] or '', run[2] or ''}
end
return {redis.call('LRANGE', key('turns', ref), first - 1, last - 1), open, about[2] or '', stored, about[1]}
