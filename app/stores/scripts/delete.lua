-- Take a conversation away. A turn that runs (`turn`, as the caller read it) gets its final event first; its worker's
-- fence is gone with the conversation. A tombstone keeps the id for a while: numbers begin again with a new conversation.
-- ARGV: owner ref turn record me log_ttl_s
local conversation = key('conversation', ref)
local found = redis.call('HMGET', conversation, 'agent', 'generation')
if not found[1] then return {'unknown'} end
local running = redis.call('LINDEX', key('queue', ref), 0) or ''
if running ~= turn then return {'moved', running} end
local seq = 0
if turn ~= '' then
  seq = append(ref, turn, 'turn.cancelled', '', record, me)
  close(ref, turn, log_ttl_s)
end
redis.call('DEL', conversation, key('steps', ref, found[2]), key('turns', ref), key('queue', ref), key('images', ref),
  key('variables', ref, found[2]), key('fresh', ref, found[2]))
redis.call('HSET', conversation, 'deleted', now())
redis.call('EXPIRE', conversation, log_ttl_s)
redis.call('ZREM', leases, ref)
redis.call('ZREM', key('ready', found[1]), ref)
redis.call('ZREM', key('owner', owner), ref)
return {'ok', seq}
