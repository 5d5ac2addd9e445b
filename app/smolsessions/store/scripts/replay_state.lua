-- Return the remains of earlier attempts at a turn: journal, log, steps from index `first` on, and the number of effects that
-- the journal must hold. Journal and log are empty unless `effects` is 1.
-- ARGV: ref turn fence first effects
if not holds_lease(ref, fence) then return {'lost'} end
local all = effects == '1'
return {'ok', all and redis.call('HGETALL', key('journal', ref, turn)) or {},
  all and redis.call('LRANGE', key('log', ref, turn), 0, -1) or {},
  redis.call('LRANGE', key('steps', ref), first, -1), redis.call('HGET', key('run', ref, turn), 'effects') or '0'}
