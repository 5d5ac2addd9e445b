-- Take a conversation away. The turns that run or wait (`open`: number and record of each, in order, as the caller read them)
-- get their final events first; a worker's fence is gone with the conversation.
-- ARGV: owner ref me log_ttl_s ...open
if not redis.call('HGET', key('conversation', ref), 'agent') then return {'unknown'} end
local queue, seqs = redis.call('LRANGE', key('queue', ref), 0, -1), {}
if #open ~= 2 * #queue then return {'moved'} end
for i, turn in ipairs(queue) do
  if open[2 * i - 1] ~= turn then return {'moved'} end
end
for i, turn in ipairs(queue) do
  seqs[i] = append(ref, turn, 'turn.cancelled', '', open[2 * i], me)
  close(ref, turn, log_ttl_s)
end
take_away(ref, owner, log_ttl_s)
return {'ok', seqs}
