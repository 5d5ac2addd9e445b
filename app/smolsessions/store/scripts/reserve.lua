-- Reserve the name of a conversation or turn for a key, for `keep_s` seconds, or return the one that an earlier request reserved.
-- An empty `wanted` only asks.
-- ARGV: idem digest wanted keep_s
local known = redis.call('GET', key('idem', idem))
if not known and wanted == '' then return {'none'} end
if not known then
  redis.call('SET', key('idem', idem), wanted .. '\n\n\n' .. digest, 'EX', keep_s)
  return {'new', wanted}
end
local reserved, asked = string.match(known, '^(.-)\n.-\n.-\n(.*)$')
if not reserved then damaged('idem') end
if asked ~= digest then return {'reused'} end
return {'known', reserved}
