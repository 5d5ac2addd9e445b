-- Return turn records from `first` to `last`, start and attempts of the open turns, settings, number of turns, and agent.
-- If `last` is less than `first`, the newest record comes first. Records beyond `max_bytes` are left out, except the first.
-- ARGV: ref first last max_bytes
local about = redis.call('HMGET', key('conversation', ref), 'agent', 'settings')
if not about[1] then check_not_damaged(ref) return false end
local open, stored = {}, count_turns(ref)
local queue = redis.call('LRANGE', key('queue', ref), 0, MAX_QUEUED)
if #queue > MAX_QUEUED then damaged('queue') end
for _, turn in ipairs(queue) do
  local run = redis.call('HMGET', key('run', ref, turn), 'started', 'attempts', 'waits')
  open[#open + 1] = {turn, run[1] or '', run[2] or '', run[3] and 1 or 0}
end
first, last = tonumber(first), tonumber(last)
local records, left = {}, tonumber(max_bytes)
for turn = first, last, last < first and -1 or 1 do
  local record = redis.call('LINDEX', key('turns', ref), turn - 1)
  left = left - #(record or '')
  if not record or (left < 0 and records[1]) then break end
  records[#records + 1] = record
end
return {records, open, about[2] or '', stored, about[1]}
