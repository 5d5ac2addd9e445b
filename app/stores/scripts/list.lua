-- An owner's conversations, newest first, older than the cursor.
-- ARGV: owner cursor limit
local before = cursor == '' and '+inf' or '(' .. cursor
local rows = {}
for _, ref in ipairs(redis.call('ZREVRANGEBYSCORE', key('owner', owner), before, '-inf', 'LIMIT', 0, limit)) do
  rows[#rows + 1] = row(ref)
end
return rows
