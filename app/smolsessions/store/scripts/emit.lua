-- Append the writes of a running turn, and renew its lease.
-- ARGV: ref turn fence own_channel lease_us serial ...entries
if not holds_lease(ref, fence) then return {'lost'} end
redis.call('ZADD', leases, 'XX', now() + lease_us, ref)
local state, seqs = append_writes(ref, turn, own_channel, serial, entries)
return {state, seqs}
