-- Give up a claimed turn without ending it: its conversation is ready again for whoever comes.
-- ARGV: ref fence wake
if not holds(ref, fence) then return {'lost'} end
redis.call('HDEL', key('conversation', ref), 'fence')
redis.call('ZREM', leases, ref)
make_ready(ref, wake)
return {'ok'}
