-- A turn's log after a cursor, `most` entries of it, and from now on its news on channel `me` (if one is given): nothing falls
-- between. A log that is packed comes as its one record, whatever the cursor. The last of the answer is the log's length.
-- ARGV: ref turn after most me
local about = redis.call('HMGET', key('conversation', ref), 'agent', 'terms')
if not about[1] then check_missing(ref) return {'unknown'} end
if tonumber(turn) > turns_of(ref) then return {'unknown'} end
local record = redis.call('LINDEX', key('turns', ref), turn - 1)
local log, open = key('log', ref, turn), redis.call('EXISTS', key('run', ref, turn)) == 1
if open and me ~= '' then redis.call('SADD', key('watch', ref, turn), me) end
local terms, length = about[2] or '', redis.call('LLEN', log)
local packed = not open and redis.call('HGET', key('logs', ref), turn)
if packed then return {'packed', record, {packed}, terms, length} end
local first = not open and redis.call('LINDEX', log, 0)
if first and string.sub(first, 1, 7) == 'packed\n' then return {'packed', record, {string.sub(first, 8)}, terms, length} end
return {open and 'open' or 'over', record, redis.call('LRANGE', log, after, after + most - 1), terms, length}
