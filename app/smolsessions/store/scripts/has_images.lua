-- Return 1 or 0 for each name: whether the conversation has this image.
-- ARGV: ref ...names
local found = {}
for i, name in ipairs(names) do found[i] = redis.call('HEXISTS', key('images', ref), name) end
return found
