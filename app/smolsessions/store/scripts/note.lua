-- Leave word of an Idempotency-Key whose turn lies at another partition.
-- ARGV: idem digest
redis.call('SET', key('idem', idem), '\n\n\n' .. digest, 'NX', 'EX', 86400)
return {'ok'}
