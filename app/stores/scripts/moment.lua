-- What a conversation is now and was after a turn: for who goes back, forks, or looks. A turn that was cancelled while it
-- waited behind another has nothing of its own, so the one before it counts. The last of the answer is the number of the turn
-- whose head it is; 0: before the first, or nothing is kept, since an older release played them.
-- ARGV: ref turn
local found = redis.call('HMGET', key('conversation', ref), 'agent', 'record', 'terms', 'generation', 'head', 'turns', 'ttl')
if not found[1] then return {'unknown'} end
local number, head = math.min(tonumber(turn), tonumber(found[6])), nil
local moments = key('moments', ref)
while number > 0 do
  head = redis.call('HGET', moments, number)
  if head then break end
  number = number - 1
end
return {'ok', found, redis.call('LINDEX', key('queue', ref), 0) or '', head or '', number}
