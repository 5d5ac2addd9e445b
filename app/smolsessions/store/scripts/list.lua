-- Return an owner's conversations in this partition with their scores, in order from the score `start` on (empty: from the first).
-- `kind` is the list: `owner` (by creation) or `recent` (by their last change). `order` is asc or desc. The rows of the score
-- `start` come in addition to `limit`. A damaged conversation is returned as its name alone.
-- ARGV: owner kind order start limit
local list, rows = key(kind, owner), {}
local command, from, to = 'ZRANGEBYSCORE', '(0', '(9007199254740992'
if order == 'desc' then command, from, to = 'ZREVRANGEBYSCORE', to, from end
local most = tonumber(limit)
if start ~= '' then
  from = start
  most = most + math.min(redis.call('ZCOUNT', list, start, start), 1000)
end
local found = redis.call(command, list, from, to, 'WITHSCORES', 'LIMIT', 0, most)
for i = 1, #found, 2 do
  local is_sound, shown = pcall(row, found[i])
  rows[#rows + 1] = {found[i + 1], found[i], is_sound and shown or {found[i]}}
end
return rows
