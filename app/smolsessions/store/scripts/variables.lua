-- The pieces of a conversation's variables with the sealed list of them (its name is empty), and those of an unfinished turn.
-- ARGV: ref generation
return {redis.call('HGETALL', key('variables', ref, generation)), redis.call('HGETALL', key('fresh', ref, generation))}
