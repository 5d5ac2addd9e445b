-- ARGV: ref
if not redis.call('HGET', key('conversation', ref), 'agent') then return false end
return row(ref)
