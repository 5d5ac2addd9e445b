-- Return entries of an open turn's journal by name.
-- ARGV: ref turn ...names
return redis.call('HMGET', key('journal', ref, turn), unpack(names))
