-- Return for each name the size of the sealed image, 0 if the conversation does not have it.
-- ARGV: ref ...names
local found = {}
for i, name in ipairs(names) do found[i] = redis.call('HSTRLEN', key('images', ref), name) end
return found
