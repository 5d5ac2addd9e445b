-- Return the settings, and the images of these names.
-- ARGV: ref ...names
return {redis.call('HGET', key('conversation', ref), 'settings') or '', redis.call('HMGET', key('images', ref), unpack(names))}
