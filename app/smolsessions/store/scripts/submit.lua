-- Accept a turn: conversation (made if `conversation` holds its record), turn record, queue, log, ready set, at once.
-- The caller sealed the record for turn number `turn` of `agent`; where that is not what comes next it is told what is.
-- A turn that meets others goes behind them, at most `most_waiting` behind the first; `on_busy` says what becomes of that
-- one (reject, enqueue, interrupt, rollback). What an Idempotency-Key (`idem`, with the request's `digest`) has made before
-- is the answer, whatever else is so; a refusal is not kept. Where `most_queued` conversations of the agent wait for a thread,
-- one more may not. An owner may have three times as many waiting as there are places left: each leaves a quarter of the
-- places that it found.
-- ARGV: owner ref agent conversation turn record input event me wake on_busy most_waiting most_queued idem digest
local known = recall(idem, digest)
if known then return known end
local function is_overloaded()
  local left = most_queued - redis.call('ZCARD', key('ready', agent))
  return redis.call('ZCARD', key('share', agent, owner)) >= 3 * left
end
local found, first = redis.call('HMGET', key('conversation', ref), 'agent', 'created'), nil
if not found[1] then
  check_missing(ref)
  if conversation == '' then return {'unknown'} end
  if redis.call('EXISTS', key('conversation', ref)) == 1 then return {'taken'} end
  if turn ~= '1' then return {'unknown'} end
  if is_overloaded() then return {'overloaded'} end
  create(owner, ref, agent, conversation)
else
  if not found[2] then damaged('conversation') end
  if redis.call('LINDEX', key('turns', ref), turn - 1) == record then return {'ok', 1} end  -- asked again: the answer was lost
  if conversation ~= '' and idem ~= '' then return {'taken'} end
  found[2] = turns_of(ref)
  first = first_of(ref)
  if first and on_busy == 'reject' then return {'busy', first} end
  if first and redis.call('LLEN', key('queue', ref)) > tonumber(most_waiting) then return {'full', most_waiting} end
  if agent ~= found[1] or tonumber(turn) ~= found[2] + 1 then return {'moved', found[1], found[2] + 1} end
  if not first and is_overloaded() then return {'overloaded'} end
end
redis.call('HSET', key('conversation', ref), 'turns', turn, 'updated', now())
touch(ref)
redis.call('RPUSH', key('turns', ref), record)
redis.call('RPUSH', key('queue', ref), turn)
redis.call('HSET', key('run', ref, turn), 'input', input)
redis.call('SADD', key('watch', ref, turn), me)
local seq = append(ref, turn, 'turn.queued', event, event, me)
if not first then
  make_ready(ref, wake)
elseif on_busy ~= 'enqueue' then
  stop(ref, first, on_busy .. ':' .. turn)
end
if idem ~= '' then
  local created = redis.call('HGET', key('conversation', ref), 'created')
  redis.call('SET', key('idem', idem), table.concat({ref, turn, created, digest}, '\n'), 'EX', 86400)
end
return {'ok', seq}
