-- Return chunks of variables by name and tag, current or old. A chunk that is not kept is empty.
-- ARGV: ref generation ...wanted
local found = {}
for i = 1, #wanted, 2 do found[#found + 1] = find_chunk(ref, generation, wanted[i], wanted[i + 1]) or '' end
return found
