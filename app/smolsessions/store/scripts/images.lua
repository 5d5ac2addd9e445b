-- Return the terms, and the images of these names.
-- ARGV: ref ...names
return {redis.call('HGET', key('conversation', ref), 'terms') or '', redis.call('HMGET', key('images', ref), unpack(names))}
