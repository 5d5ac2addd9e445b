-- Return chunks of variables by name and tag, current or old. A chunk that is not kept is empty.
-- ARGV: ref ...wanted
local found = {}
for i = 1, #wanted, 2 do found[#found + 1] = find_chunk(ref, wanted[i], wanted[i + 1]) or '' end
return found
