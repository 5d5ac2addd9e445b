-- Extend leases, also an expired one that nobody swept; gives back the places (from 0) of those that are lost, and of
-- those whose turn is to be stopped, each with why (telling their worker may have been missed).
-- ARGV: lease_us ...held
local lost, stopped, until_us = {}, {}, now() + lease_us
for i = 1, #held, 3 do
  local ref, turn, place = held[i], held[i + 2], (i - 1) / 3
  if redis.pcall('HGET', key('conversation', ref), 'fence') == held[i + 1] then
    redis.call('ZADD', leases, until_us, ref)
    local why = redis.pcall('HGET', key('run', ref, turn), 'cancel')
    if type(why) == 'string' then stopped[#stopped + 1] = {place, why} end
  else
    lost[#lost + 1] = place
  end
end
return {lost, stopped}
