-- Extend leases, also an expired one that nobody swept; gives back the places (from 0) of those that are lost.
-- ARGV: lease_us ...held
local lost, until_us = {}, now() + lease_us
for i = 1, #held, 2 do
  if holds(held[i], held[i + 1]) then
    redis.call('ZADD', leases, until_us, held[i])
  else
    lost[#lost + 1] = (i - 1) / 2
  end
end
return lost
