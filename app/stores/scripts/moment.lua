-- What a conversation is now and was after a turn (0: before the first; a turn that never began has none of its own, so the
-- one before it counts): for who goes back, forks, or looks.
-- ARGV: ref turn
local found = redis.call('HMGET', key('conversation', ref), 'agent', 'record', 'terms', 'generation', 'head', 'turns', 'ttl')
if not found[1] then return {'unknown'} end
local number, head = math.min(tonumber(turn), tonumber(found[6])), false
local moments = key('moments', ref)
if number > 0 then head = redis.call('HGET', moments, number) end
while number > 0 and not head do
  number = number - 1
  head = redis.call('HGET', moments, number .. '+') or redis.call('HGET', moments, number)
end
return {'ok', found, redis.call('LINDEX', key('queue', ref), 0) or '', head or ''}
