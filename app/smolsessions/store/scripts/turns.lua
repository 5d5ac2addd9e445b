-- Return turn records from `first` to `last`, start and attempts of the open turns, terms, number of turns, and agent.
-- ARGV: ref first last
local about = redis.call('HMGET', key('conversation', ref), 'agent', 'terms')
if not about[1] then check_not_damaged(ref) return false end
local open, stored = {}, count_turns(ref)
local queue = redis.call('LRANGE', key('queue', ref), 0, MAX_QUEUED)
if #queue > MAX_QUEUED then damaged('queue') end
for _, turn in ipairs(queue) do
  local run = redis.call('HMGET', key('run', ref, turn), 'started', 'attempts')
  open[#open + 1] = {turn, run[1] or '', run[2] or ''}
end
return {redis.call('LRANGE', key('turns', ref), first - 1, last - 1), open, about[2] or '', stored, about[1]}
