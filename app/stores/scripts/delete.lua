-- Take a conversation away. The turns that run or wait (`open`: number and record of each, in order, as the caller read them)
-- get their final events first; a worker's fence is gone with the conversation. A tombstone keeps the id for a while: numbers
-- begin again with a new conversation.
-- ARGV: owner ref me log_ttl_s ...open
local conversation = key('conversation', ref)
local found = redis.call('HMGET', conversation, 'agent', 'generation')
if not found[1] then return {'unknown'} end
local queue, seqs = redis.call('LRANGE', key('queue', ref), 0, -1), {}
if #open ~= 2 * #queue then return {'moved'} end
for i, turn in ipairs(queue) do
  if open[2 * i - 1] ~= turn then return {'moved'} end
end
for i, turn in ipairs(queue) do
  seqs[i] = append(ref, turn, 'turn.cancelled', '', open[2 * i], me)
  close(ref, turn, log_ttl_s)
end
redis.call('DEL', conversation, key('steps', ref, found[2]), key('turns', ref), key('queue', ref), key('images', ref),
  key('variables', ref, found[2]), key('fresh', ref, found[2]))
redis.call('HSET', conversation, 'deleted', now())
redis.call('EXPIRE', conversation, log_ttl_s)
redis.call('ZREM', leases, ref)
redis.call('ZREM', key('ready', found[1]), ref)
redis.call('ZREM', key('owner', owner), ref)
return {'ok', seqs}
