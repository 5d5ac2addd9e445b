-- Release a claimed turn: its conversation is ready again. A turn that was begun goes on where it is. With `is_aside` the
-- conversation is damaged, and no worker claims it again.
-- ARGV: ref turn fence wake is_aside
if not holds(ref, fence) then return {'lost'} end
redis.call('HDEL', key('conversation', ref), 'fence')
redis.call('ZREM', leases, ref)
if is_aside == '1' then return {'ok'} end
if redis.call('HEXISTS', key('journal', ref, turn), 'started:1') == 0 then redis.call('HDEL', key('run', ref, turn), 'started') end
make_ready(ref, wake)
return {'ok'}
