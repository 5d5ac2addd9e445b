-- Return the chunks of a conversation's variables with their sealed list (empty name), and the chunks of the open turn.
-- ARGV: ref generation
return {redis.call('HGETALL', key('variables', ref, generation)), redis.call('HGETALL', key('pending', ref, generation))}
