-- Delete a conversation. Its open turns get final events first: `open` holds number and record of each, in order, as the
-- caller read them. The fence goes with the conversation. With `is_damaged`, the turns get no events.
-- ARGV: owner ref own_channel log_ttl_s tombstone_s is_damaged ...open
restore_long_logs(ref)
if is_damaged == '1' then
  local last = redis.pcall('LINDEX', key('queue', ref), -1)
  for _, turn in ipairs({redis.pcall('LINDEX', key('queue', ref), 0), last}) do
    if type(turn) == 'string' then close_turn(ref, turn, log_ttl_s) end
  end
  delete_conversation(ref, owner, tombstone_s)
  return {'ok', {}}
end
if not redis.call('HGET', key('conversation', ref), 'agent') then check_not_damaged(ref) return {'unknown'} end
local queue, seqs = redis.call('LRANGE', key('queue', ref), 0, MAX_QUEUED), {}
if #open ~= 2 * #queue then return {'moved'} end
for i, turn in ipairs(queue) do
  if open[2 * i - 1] ~= turn then return {'moved'} end
end
for i, turn in ipairs(queue) do
  seqs[i] = append(ref, turn, 'turn.cancelled', '', open[2 * i], own_channel)
  close_turn(ref, turn, log_ttl_s)
end
delete_conversation(ref, owner, tombstone_s)
return {'ok', seqs}
