-- ARGV: ref
if not redis.call('HGET', key('conversation', ref), 'agent') then check_missing(ref) return false end
return row(ref)
