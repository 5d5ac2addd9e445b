-- Give up a claimed turn: its conversation is ready again for whoever comes. One that was begun goes on where it is.
-- ARGV: ref turn fence wake
if not holds(ref, fence) then return {'lost'} end
redis.call('HDEL', key('conversation', ref), 'fence')
redis.call('ZREM', leases, ref)
if redis.call('HEXISTS', key('journal', ref, turn), 'started:1') == 0 then redis.call('HDEL', key('run', ref, turn), 'started') end
make_ready(ref, wake)
return {'ok'}
