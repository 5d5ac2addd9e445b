-- Copy chunks of a conversation's variables, current or old, to a staged key. `wanted` holds (name, tag). Returns how many of these
-- arguments it took.
-- ARGV: ref staged ...wanted
local staged_key, bytes, taken = key('staged', staged, 'variables'), 0, 0
while taken < #wanted and bytes < PIECE_BYTES do
  local chunk = find_chunk(ref, wanted[taken + 1], wanted[taken + 2])
  if not chunk then return 'gone' end
  redis.call('HSET', staged_key, wanted[taken + 1], chunk)
  bytes, taken = bytes + #chunk, taken + 2
end
redis.call('EXPIRE', staged_key, STAGED_S)
return taken
