-- Return the remains of earlier attempts at a turn: journal, log, steps from index `first` on, and the number of effects that
-- the journal must hold.
-- ARGV: ref turn fence generation first
if not holds_lease(ref, fence) then return {'lost'} end
return {'ok', redis.call('HGETALL', key('journal', ref, turn)), redis.call('LRANGE', key('log', ref, turn), 0, -1),
  redis.call('LRANGE', key('steps', ref, generation), first, -1), redis.call('HGET', key('run', ref, turn), 'effects') or '0'}
