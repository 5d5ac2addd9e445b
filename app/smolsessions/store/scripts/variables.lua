-- Return the chunks of a conversation's variables with their sealed list (empty name), and the chunks of the open turn.
-- ARGV: ref
return {redis.call('HGETALL', key('variables', ref)), redis.call('HGETALL', key('pending', ref))}
