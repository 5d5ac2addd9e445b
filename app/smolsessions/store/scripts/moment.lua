-- A conversation as it is, and its head as it was after a turn: for rollbacks, forks and reads. A turn that was cancelled while it
-- waited behind another has no head of its own, so the one before it counts. The last of the answer is the number of the turn
-- whose head it is; 0: before the first, or an older release played them and kept none.
-- ARGV: ref turn
if not redis.call('HGET', key('conversation', ref), 'agent') then check_missing(ref) return {'unknown'} end
local number, head = math.min(tonumber(turn), turns_of(ref)), nil
local moments = key('moments', ref)
while number > 0 do
  head = redis.call('HGET', moments, number)
  if head then break end
  number = number - 1
end
return {'ok', row(ref), first_of(ref) or '', head or '', number}
