-- Give up a claimed turn that was not begun: its conversation is ready again for whoever comes.
-- ARGV: ref turn fence wake
if not holds(ref, fence) then return {'lost'} end
redis.call('HDEL', key('conversation', ref), 'fence')
redis.call('ZREM', leases, ref)
redis.call('HDEL', key('run', ref, turn), 'started')
make_ready(ref, wake)
return {'ok'}
