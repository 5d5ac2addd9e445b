-- The conversation's images of these names.
-- ARGV: ref ...names
return redis.call('HMGET', key('images', ref), unpack(names))
