-- Return at most `most` entries of a turn's log after a cursor, and subscribe channel `own_channel` (or empty) to later ones. A
-- packed log is returned as its one record, whatever the cursor. The last value is the length of the log. The worker of an open turn
-- learns of a reader whose cursor is in the log, and writes the events that it holds.
-- ARGV: ref turn after most own_channel
local about = redis.call('HMGET', key('conversation', ref), 'agent', 'settings')
if not about[1] then check_not_damaged(ref) return {'unknown'} end
if tonumber(turn) > count_turns(ref) then return {'unknown'} end
local record = redis.call('LINDEX', key('turns', ref), turn - 1)
local log, run = key('log', ref, turn), key('run', ref, turn)
local open = redis.call('EXISTS', run) == 1 and (redis.call('HEXISTS', run, 'waits') == 1 and 'waiting' or 'open')
local settings, length = about[2] or '', redis.call('LLEN', log)
if open and own_channel ~= '' then
  local follows = tonumber(after) <= length  -- else it waits for the end
  add_watcher(ref, turn, own_channel, follows)
  if follows then notify_worker(ref, turn, 'reader') end
end
local packed = not open and redis.call('HGET', key('logs', ref), turn)
if packed then return {'packed', record, {packed}, settings, length} end
local first = not open and redis.call('LINDEX', log, 0)
if first and string.sub(first, 1, 7) == 'packed\n' then return {'packed', record, {string.sub(first, 8)}, settings, length} end
return {open or 'over', record, redis.call('LRANGE', log, after, after + most - 1), settings, length}
