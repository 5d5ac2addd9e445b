-- What earlier attempts at a turn left: the journal, the log, and the finished steps from index `first` on.
-- ARGV: ref turn fence generation first
if not holds(ref, fence) then return {'lost'} end
return {'ok', redis.call('HGETALL', key('journal', ref, turn)), redis.call('LRANGE', key('log', ref, turn), 0, -1),
  redis.call('LRANGE', key('steps', ref, generation), first, -1)}
