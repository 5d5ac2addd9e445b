-- Replace a conversation's record where it is still the one that was read.
-- ARGV: ref read written
local conversation = key('conversation', ref)
local current = redis.call('HGET', conversation, 'record')
if not current then return {'unknown'} end
if current ~= read then return {'moved'} end
redis.call('HSET', conversation, 'record', written, 'updated', now())
return {'ok', row(ref)}
