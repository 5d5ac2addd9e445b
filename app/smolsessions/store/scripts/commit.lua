-- Commit a turn: its steps up to `count` become part of the conversation, its record is final, its lease is released.
-- A repeated commit with the same token returns `done`. Any other token has lost the lease.
-- - An empty `head` keeps the head. An empty `count` ends a damaged turn: it keeps all steps, and deletes unusable keys.
-- - `packed` (if not empty) is the whole log except the final event. It replaces the `logged` entries (empty: unknown), and the
--   final event gets number `last_seq`.
-- - `rollback` is the number of the turn that rolls this one back (or empty). It restores the first `count` steps and the
--   variables. A commit without it is refused if a rollback was requested.
-- - `written` is the number of writes of this claim. If the store has fewer, it lost acknowledged writes.
-- - `variables` is the sealed list of the variables' chunks, if it changed.
-- ARGV: ref turn fence generation count head variables record event packed logged last_seq written rollback own_channel wake log_ttl_s
local conversation = key('conversation', ref)
local token = fence .. '#' .. turn
if not holds_lease(ref, fence) then
  if redis.call('HGET', conversation, 'committed') == token then return {'done', 0} end
  return {'lost'}
end
if count == '' then clear_damage(ref, turn) end
local by = string.match(redis.call('HGET', key('run', ref, turn), 'cancel') or '', '^rollback:(%d+)$')
if by and rollback == '' then return {'rollback', by} end
local stored_writes = parse_int(redis.call('HGET', key('run', ref, turn), 'written') or '0') or damaged('run')
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
  local pending = redis.call('HGETALL', key('pending', ref, generation))
  for i = 1, #pending, 2 do put_chunk(ref, generation, pending[i], pending[i + 1]) end
  if variables ~= '' then put_chunk(ref, generation, '', variables) end
end
keep_head(ref, turn)
refresh_ttl(ref)
redis.call('DEL', key('pending', ref, generation))
redis.call('HSET', conversation, 'committed', token, 'updated', now())
redis.call('HDEL', conversation, 'fence')
if redis.call('LLEN', key('turns', ref)) >= tonumber(turn) then
  redis.call('LSET', key('turns', ref), turn - 1, record)
end
redis.call('ZREM', leases, ref)
redis.call('LPOP', key('queue', ref))
local seq = tonumber(last_seq)
if event == '' then  -- a damaged queue named a finished turn again
elseif packed == '' then
  seq = append(ref, turn, event, '', record, own_channel)
else
  redis.call('DEL', key('log', ref, turn))
  if log_ttl_s == '0' then
    redis.call('HSET', key('logs', ref), turn, packed)
  else
    redis.call('RPUSH', key('log', ref, turn), 'packed\n' .. packed, event .. '\n')
  end
  publish(ref, turn, seq, event, record, own_channel)
end
close_turn(ref, turn, log_ttl_s)
if redis.call('LLEN', key('queue', ref)) > 0 then make_ready(ref, wake) end
return {'ok', seq}
