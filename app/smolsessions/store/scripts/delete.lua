-- Take a conversation away. The turns that run or wait (`open`: number and record of each, in order, as the caller read them)
-- get their final events first; a worker's fence is gone with the conversation. A conversation whose turns cannot be read
-- (`is_damaged`) goes without these events.
-- ARGV: owner ref me log_ttl_s tombstone_s is_damaged ...open
restore_long_logs(ref)
if is_damaged == '1' then
  local last = redis.pcall('LINDEX', key('queue', ref), -1)
  for _, turn in ipairs({redis.pcall('LINDEX', key('queue', ref), 0), last}) do
    if type(turn) == 'string' then close(ref, turn, log_ttl_s) end
  end
  take_away(ref, owner, tombstone_s)
  return {'ok', {}}
end
if not redis.call('HGET', key('conversation', ref), 'agent') then check_missing(ref) return {'unknown'} end
local queue, seqs = redis.call('LRANGE', key('queue', ref), 0, MOST_QUEUED), {}
if #open ~= 2 * #queue then return {'moved'} end
for i, turn in ipairs(queue) do
  if open[2 * i - 1] ~= turn then return {'moved'} end
end
for i, turn in ipairs(queue) do
  seqs[i] = append(ref, turn, 'turn.cancelled', '', open[2 * i], me)
  close(ref, turn, log_ttl_s)
end
take_away(ref, owner, tombstone_s)
return {'ok', seqs}
