-- Give up a claimed turn without ending it: its conversation is ready again for whoever comes, and no attempt is counted.
-- ARGV: ref turn fence wake
if not holds(ref, fence) then return {'lost'} end
redis.call('HDEL', key('conversation', ref), 'fence')
redis.call('ZREM', leases, ref)
redis.call('HINCRBY', key('run', ref, turn), 'attempts', -1)
redis.call('HDEL', key('run', ref, turn), 'started')
make_ready(ref, wake)
return {'ok'}
