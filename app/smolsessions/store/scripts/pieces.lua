-- Pieces of the variables by name and tag, as they are or as they were; false for one that is not kept any more.
-- ARGV: ref generation ...wanted
local found = {}
for i = 1, #wanted, 2 do found[#found + 1] = piece_of(ref, generation, wanted[i], wanted[i + 1]) or '' end
return found
