-- Renew leases, even expired ones that were not swept. Returns the places (from 0) of lost leases, and places and flags of turns
-- that are to stop or to take a message, as the message to their worker may have been lost.
-- ARGV: lease_us ...held
local lost, stopped, until_us = {}, {}, now() + lease_us
for i = 1, #held, 3 do
  local ref, turn, place = held[i], held[i + 2], (i - 1) / 3
  if redis.pcall('HGET', key('conversation', ref), 'fence') == held[i + 1] then
    redis.call('ZADD', leases, until_us, ref)
    local run = redis.pcall('HMGET', key('run', ref, turn), 'cancel', 'steers')
    local flag = run[1] or run[2] and 'steer'
    if type(flag) == 'string' then stopped[#stopped + 1] = {place, flag} end
  else
    lost[#lost + 1] = place
  end
end
return {lost, stopped}
