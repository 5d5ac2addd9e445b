-- ARGV: owner ref agent record
if redis.call('EXISTS', key('conversation', ref)) == 1 then return {'exists'} end
create(owner, ref, agent, record)
return {'ok', row(ref)}
