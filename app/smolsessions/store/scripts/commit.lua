-- Commit a turn: its steps up to `count` become part of the conversation, its record is final, its lease is released.
-- A repeated commit with the same token returns `done`. Any other token has lost the lease.
-- - An empty `head` keeps the head. An empty `count` ends a damaged turn: it keeps all steps, and deletes unusable keys.
-- - `packed` (if not empty) is the whole log except the final event. It replaces the `logged` entries (empty: unknown), and the
--   final event gets number `last_seq`.
-- - `rollback` is the number of the turn that rolls this one back (or empty). It restores the first `count` steps and the
--   variables. A commit without it is refused if a rollback was requested.
-- - `entries` are the last writes, from number `serial` on, without events. `written` is the number of writes of this claim. If
--   the store has fewer, it lost acknowledged writes.
-- - `variables` is the sealed list of the variables' chunks, if it changed. The staged `chunks` (their number, or empty) replace
--   all others. If they are missing, each chunk is written.
-- ARGV: ref turn fence count head variables staged chunks record event packed logged last_seq written rollback own_channel wake log_ttl_s serial ...entries
local conversation, run, log = key('conversation', ref), key('run', ref, turn), key('log', ref, turn)
local pending, token = key('pending', ref), fence .. '#' .. turn
local holder, committed, last_head, ttl = unpack(redis.call('HMGET', conversation, 'fence', 'committed', 'head', 'ttl'))
if holder ~= fence then
  if committed == token then return {'done', 0} end
  return {'lost'}
end
if count == '' then clear_damage(ref, turn) end
if #entries > 0 then
  local state = append_writes(ref, turn, own_channel, serial, entries)
  if state ~= 'ok' then return {state} end
end
local asked, stored_writes = unpack(redis.call('HMGET', run, 'cancel', 'written'))
local by = string.match(asked or '', '^rollback:(%d+)$')
if by and rollback == '' then return {'rollback', by} end
stored_writes = parse_int(stored_writes or '0') or damaged('run')
if stored_writes < tonumber(written) then return {'behind'} end
check_logs(ref)
if logged ~= '' and redis.call('LLEN', log) < tonumber(logged) then return {'gap'} end
if count ~= '' then
  local stored = redis.call('LLEN', key('steps', ref))
  if stored < tonumber(count) then return {'gap'} end
  if count == '0' then
    redis.call('DEL', key('steps', ref))
  elseif stored > tonumber(count) then
    redis.call('LTRIM', key('steps', ref), 0, count - 1)
  end
end
local at = now()
local changed = {'committed', token, 'updated', at}
if head ~= '' then
  changed[5], changed[6], last_head = 'head', head, head
  local is_staged = chunks ~= '' and redis.call('HLEN', key('staged', staged, 'variables')) == tonumber(chunks)
  if is_staged then unstage(staged, {'variables'}, ref) end
  local changes = is_staged and {} or redis.call('HGETALL', pending)
  if variables ~= '' then changes[#changes + 1], changes[#changes + 2] = '', variables end
  put_chunks(ref, changes)
end
redis.call('HSET', key('heads', ref), turn, last_head or '')
redis.call('HSET', conversation, unpack(changed))
redis.call('HDEL', conversation, 'fence')
touch(ref, at)
if ttl then refresh_ttl(ref) end
if redis.call('LLEN', key('turns', ref)) >= tonumber(turn) then
  redis.call('LSET', key('turns', ref), turn - 1, record)
end
redis.call('ZREM', leases, ref)
redis.call('LPOP', key('queue', ref))
local seq, is_packed = tonumber(last_seq), event ~= '' and packed ~= ''
if event == '' then  -- a damaged queue named a finished turn again
elseif not is_packed then
  seq = append(ref, turn, event, '', record, own_channel)
else
  publish(ref, turn, seq, event, record, own_channel)
end
if is_packed and log_ttl_s == '0' then
  redis.call('HSET', key('logs', ref), turn, packed)
  delete_working_keys(ref, turn, pending, log)
else
  if is_packed then
    redis.call('DEL', log)
    redis.call('RPUSH', log, 'packed\n' .. packed, event .. '\n')
  end
  redis.call('UNLINK', pending)  -- with very many chunks, DEL takes tens of milliseconds
  close_turn(ref, turn, log_ttl_s)
end
if redis.call('LLEN', key('queue', ref)) > 0 then make_ready(ref, wake) end
return {'ok', seq}
