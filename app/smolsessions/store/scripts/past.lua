-- What earlier attempts at a turn left: the journal, the log, the finished steps from index `first` on, and how many effects
-- the journal must hold.
-- ARGV: ref turn fence generation first
if not holds(ref, fence) then return {'lost'} end
return {'ok', redis.call('HGETALL', key('journal', ref, turn)), redis.call('LRANGE', key('log', ref, turn), 0, -1),
  redis.call('LRANGE', key('steps', ref, generation), first, -1), redis.call('HGET', key('run', ref, turn), 'effects') or '0'}
