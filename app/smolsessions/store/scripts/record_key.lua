-- Record an Idempotency-Key whose turn lies in another partition.
-- ARGV: idem digest
redis.call('SET', key('idem', idem), '\n\n\n' .. digest, 'NX', 'EX', 86400)
return {'ok'}
