-- End a turn: the tail up to `count` becomes the conversation's, the record is final, the lease goes back.
-- An empty `head` leaves the head as it is, an empty `count` the steps. `packed` (if there is one) is the whole log but for the final event, in one
-- record: it takes the place of its `logged` entries (empty: who commits does not know how many there are), and the final
-- event is number `last_seq`. Asked again by the same token it says that it is done; any other token has lost.
-- With `rollback` (the number of the turn that wants it) the conversation is left as the turn found it: its first `count`
-- steps (empty: all that there are) and its variables. A commit that does not know of a rollback is told, and ends nothing.
-- `written` is how many writes this claim made: where the store has fewer it went back behind what it had acknowledged.
-- An empty `count` ends a turn that was damaged: what stands in the way of its end is deleted.
-- The variables that came with the tail become the conversation's too; `variables` is the sealed list of all, if it changed.
-- ARGV: ref turn fence generation count head variables record event packed logged last_seq written rollback me wake log_ttl_s
local conversation = key('conversation', ref)
local token = fence .. '#' .. turn
if not holds(ref, fence) then
  if redis.call('HGET', conversation, 'committed') == token then return {'done', 0} end
  return {'lost'}
end
if count == '' then clear_damage(ref, turn) end
local by = string.match(redis.call('HGET', key('run', ref, turn), 'cancel') or '', '^rollback:(%d+)$')
if by and rollback == '' then return {'rollback', by} end
local stored_writes = whole(redis.call('HGET', key('run', ref, turn), 'written') or '0') or damaged('run')
if stored_writes < tonumber(written) then return {'behind'} end
check_logs(ref)
if logged ~= '' and redis.call('LLEN', key('log', ref, turn)) < tonumber(logged) then return {'gap'} end
if count ~= '' then
  local stored = redis.call('LLEN', key('steps', ref, generation))
  if stored < tonumber(count) then return {'gap'} end
  if count == '0' then
    redis.call('DEL', key('steps', ref, generation))
  elseif stored > tonumber(count) then
    redis.call('LTRIM', key('steps', ref, generation), 0, count - 1)
  end
end
if head ~= '' then
  redis.call('HSET', conversation, 'head', head)
  local fresh = redis.call('HGETALL', key('fresh', ref, generation))
  for i = 1, #fresh, 2 do put_piece(ref, generation, fresh[i], fresh[i + 1]) end
  if variables ~= '' then put_piece(ref, generation, '', variables) end
end
note_moment(ref, turn)
touch(ref)
redis.call('DEL', key('fresh', ref, generation))
redis.call('HSET', conversation, 'committed', token, 'updated', now())
redis.call('HDEL', conversation, 'fence')
if redis.call('LLEN', key('turns', ref)) >= tonumber(turn) then
  redis.call('LSET', key('turns', ref), turn - 1, record)
end
redis.call('ZREM', leases, ref)
redis.call('LPOP', key('queue', ref))
local seq = tonumber(last_seq)
if event == '' then  -- the turn was over already: a queue that was damaged named it again
elseif packed == '' then
  seq = append(ref, turn, event, '', record, me)
else
  redis.call('DEL', key('log', ref, turn))
  if log_ttl_s == '0' then
    redis.call('HSET', key('logs', ref), turn, packed)
  else
    redis.call('RPUSH', key('log', ref, turn), 'packed\n' .. packed, event .. '\n')
  end
  tell(ref, turn, seq, event, record, me)
end
close(ref, turn, log_ttl_s)
if redis.call('LLEN', key('queue', ref)) > 0 then make_ready(ref, wake) end
return {'ok', seq}
