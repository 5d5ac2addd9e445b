-- Return a conversation.
-- ARGV: ref
if not redis.call('HGET', key('conversation', ref), 'agent') then check_not_damaged(ref) return false end
return row(ref)
