-- Create an empty conversation.
-- ARGV: owner ref agent record settings ttl
if redis.call('EXISTS', key('conversation', ref)) == 1 then return {'exists'} end
create(owner, ref, agent, record)
if settings ~= '' then redis.call('HSET', key('conversation', ref), 'settings', settings) end
set_ttl(ref, ttl)
return {'ok', row(ref)}
