-- An owner's conversations at this partition, newest first, from the score `before` on (as ZREVRANGEBYSCORE reads it).
-- ARGV: owner before limit
local rows = {}
for _, ref in ipairs(redis.call('ZREVRANGEBYSCORE', key('owner', owner), before, '-inf', 'LIMIT', 0, limit)) do
  rows[#rows + 1] = row(ref)
end
return rows
