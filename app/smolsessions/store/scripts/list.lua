-- Return an owner's conversations in this partition with their scores, newest first, from the score `before` on (in the form of
-- ZREVRANGEBYSCORE). A damaged conversation is returned as its name alone.
-- ARGV: owner before limit
local rows = {}
local found = redis.call('ZREVRANGEBYSCORE', key('owner', owner), before, '(0', 'WITHSCORES', 'LIMIT', 0, limit)
for i = 1, #found, 2 do
  local is_sound, shown = pcall(row, found[i])
  rows[#rows + 1] = {found[i + 1], is_sound and shown or {found[i]}}
end
return rows
