-- The turn that an Idempotency-Key has made, if there is one.
-- ARGV: idem digest
return recall(idem, digest) or {'new'}
