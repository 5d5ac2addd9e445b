-- Which of these images the conversation has: a 1 or a 0 for each name.
-- ARGV: ref ...names
local found = {}
for i, name in ipairs(names) do found[i] = redis.call('HEXISTS', key('images', ref), name) end
return found
