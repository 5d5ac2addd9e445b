-- A turn's log and from now on its news on channel `me` (if one is given): nothing falls between. Of a turn that goes on what
-- follows the cursor, of one that is over the whole log: it may be packed.
-- ARGV: ref turn after me
local record = redis.call('LINDEX', key('turns', ref), turn - 1)
if not record then return {'unknown'} end
local open = redis.call('EXISTS', key('run', ref, turn)) == 1
if open and me ~= '' then redis.call('SADD', key('watch', ref, turn), me) end
local entries = redis.call('LRANGE', key('log', ref, turn), open and after or 0, -1)
return {open and 'open' or 'over', record, entries}
