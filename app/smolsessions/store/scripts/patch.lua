-- Replace a conversation's agent, record, settings (empty: none) and time to live in microseconds (empty: none), if record, settings and
-- the title of the first message are still as read.
-- ARGV: ref agent read record read_settings settings read_title ttl
local conversation = key('conversation', ref)
local current = redis.call('HMGET', conversation, 'record', 'settings', 'title')
if not current[1] then check_not_damaged(ref) return {'unknown'} end
if current[1] ~= read or (current[2] or '') ~= read_settings or (current[3] or '') ~= read_title then return {'moved'} end
local at = now()
redis.call('HSET', conversation, 'agent', agent, 'record', record, 'updated', at)
touch(ref, at)
if settings == '' then redis.call('HDEL', conversation, 'settings') else redis.call('HSET', conversation, 'settings', settings) end
set_ttl(ref, ttl)
return {'ok', row(ref)}
