-- Release a claimed turn: its conversation is ready again. With `is_damaged`, no worker claims it again.
-- ARGV: ref turn fence wake is_damaged
if not holds_lease(ref, fence) then return {'lost'} end
redis.call('HDEL', key('conversation', ref), 'fence')
redis.call('ZREM', leases, ref)
if is_damaged == '1' then return {'ok'} end
if redis.call('HEXISTS', key('journal', ref, turn), 'started:1') == 0 then redis.call('HDEL', key('run', ref, turn), 'started') end
make_ready(ref, wake)
return {'ok'}
