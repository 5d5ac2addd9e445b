-- Return a conversation, its first open turn, and its head after a turn with the number of that turn. A turn that was
-- cancelled while it waited has no head, so the turn before it counts. The number is 0 if no head is kept.
-- ARGV: ref turn
if not redis.call('HGET', key('conversation', ref), 'agent') then check_not_damaged(ref) return {'unknown'} end
local number, head = math.min(tonumber(turn), count_turns(ref)), nil
local heads = key('heads', ref)
while number > 0 do
  head = redis.call('HGET', heads, number)
  if head then break end
  number = number - 1
end
return {'ok', row(ref), first_turn(ref) or '', head or '', number}
