-- Keep chunks of the present variables for rollbacks, before others replace them. Returns how many of the names it took.
-- ARGV: ref ...names
local blobs, bytes, taken = {}, 0, 0
while taken < #names and bytes < PIECE_BYTES do
  taken = taken + 1
  local blob = redis.call('HGET', key('variables', ref), names[taken])
  if blob then
    blobs[#blobs + 1] = blob
    bytes = bytes + #blob
  end
end
keep_chunks(ref, blobs)
return taken
