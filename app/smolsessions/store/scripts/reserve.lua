-- Reserve the id of a new conversation for an Idempotency-Key, or return the id that an earlier request reserved.
-- ARGV: idem digest wanted
local known = redis.call('GET', key('idem', idem))
if not known then
  redis.call('SET', key('idem', idem), wanted .. '\n\n\n' .. digest, 'EX', 86400)
  return {'new', wanted}
end
local reserved, asked = string.match(known, '^(.-)\n.-\n.-\n(.*)$')
if not reserved then damaged('idem') end
if asked ~= digest then return {'reused'} end
return {'known', reserved}
