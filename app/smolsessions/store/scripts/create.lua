-- Create an empty conversation.
-- ARGV: owner ref agent record terms ttl
if redis.call('EXISTS', key('conversation', ref)) == 1 then return {'exists'} end
create(owner, ref, agent, record)
if terms ~= '' then redis.call('HSET', key('conversation', ref), 'terms', terms) end
set_ttl(ref, ttl)
return {'ok', row(ref)}
