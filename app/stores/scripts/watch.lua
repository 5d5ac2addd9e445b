-- A turn's log after a cursor, `most` entries of it, and from now on its news on channel `me` (if one is given): nothing falls
-- between. A log that is packed comes as its one record, whatever the cursor.
-- ARGV: ref turn after most me
local record = redis.call('LINDEX', key('turns', ref), turn - 1)
if not record then return {'unknown'} end
local log, open = key('log', ref, turn), redis.call('EXISTS', key('run', ref, turn)) == 1
if open and me ~= '' then redis.call('SADD', key('watch', ref, turn), me) end
local first = not open and redis.call('LINDEX', log, 0)
local terms = redis.call('HGET', key('conversation', ref), 'terms') or ''
if first and string.sub(first, 1, 7) == 'packed\n' then return {'packed', record, {first}, terms} end
return {open and 'open' or 'over', record, redis.call('LRANGE', log, after, after + most - 1), terms}
