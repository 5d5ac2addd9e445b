-- Return the turn of an Idempotency-Key.
-- ARGV: idem digest
return find_request(idem, digest) or {'new'}
