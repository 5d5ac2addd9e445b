-- Accept a turn: conversation (created if `conversation` holds its record), turn record, queue, log and ready set.
-- - The record is sealed for turn number `turn` of `agent`. If another number or agent is due, the reply is `moved` with both.
-- - `on_busy` (reject, enqueue, interrupt, rollback) says what happens if a turn is open. At most `most_waiting` turns wait
--   behind the first.
-- - A known Idempotency-Key (`idem`, with the request's `digest`) returns its turn. A refusal is not recorded.
-- - At most `most_queued` conversations of an agent wait for a thread. An owner may have three times as many of them as places
--   are left, so that each owner leaves a quarter of the places that it found.
-- - A `worker` (or empty) with a free thread, who plays `agents`, gets the lease at once if no other conversation waits for it and
--   no other worker has this one in memory. The claim follows `ok`. A retry gets it anew if only the lost reply named it: the caller
--   names no `worker` if it holds the turn already.
-- ARGV: owner ref agent conversation turn record input event own_channel wake on_busy most_waiting most_queued idem digest worker lease_us fingerprint ...agents
local function is_overloaded()
  local left = most_queued - redis.call('ZCARD', key('ready', agent))
  return redis.call('ZCARD', key('owned', agent, owner)) >= 3 * left
end
local conversation_key, run = key('conversation', ref), key('run', ref, turn)
local function is_next()
  local others = {partition .. ':alone', run, key('journal', ref, turn)}
  for _, name in ipairs(agents) do others[#others + 1] = key('ready', name) end
  return not is_warm_elsewhere(ref, worker) and redis.call('EXISTS', unpack(others)) == 0
end
local function is_claimed_for_lost_reply()
  return string.match(redis.call('HGET', conversation_key, 'fence') or '', ':(.*):') == worker and first_turn(ref) == turn
    and redis.call('EXISTS', key('journal', ref, turn)) == 0
end
local function claim()
  local state = redis.call('HMGET', conversation_key, 'generation', 'head', 'terms')
  local stored = redis.call('LLEN', key('steps', ref, state[1] or ''))
  local chunks, at = redis.call('HGET', key('variables', ref, state[1] or ''), ''), now()
  local fence = grant_lease(ref, worker, lease_us, at)
  redis.call('HSET', run, 'attempts', 1, 'started', at, 'fingerprint', fingerprint, 'effects_at', 0, 'written', 0, 'claimed', at)
  return {fence, state[1] or '', state[2] or '', stored, chunks or '', state[3] or ''}
end
if redis.pcall('LINDEX', key('turns', ref), turn - 1) == record then  -- a retry after a lost reply
  return {'ok', 1, unpack(worker ~= '' and is_claimed_for_lost_reply() and claim() or {})}
end
local known = find_request(idem, digest)
if known then return known end
local found, first = redis.call('HMGET', key('conversation', ref), 'agent', 'created'), nil
if not found[1] then
  check_not_damaged(ref)
  if conversation == '' then return {'unknown'} end
  if redis.call('EXISTS', key('conversation', ref)) == 1 then return {'taken'} end
  if turn ~= '1' then return {'unknown'} end
  if is_overloaded() then return {'overloaded'} end
  create(owner, ref, agent, conversation)
else
  if not found[2] then damaged('conversation') end
  if conversation ~= '' and idem ~= '' then return {'taken'} end
  found[2] = count_turns(ref)
  first = first_turn(ref)
  if first and on_busy == 'reject' then return {'busy', first} end
  if first and redis.call('LLEN', key('queue', ref)) > tonumber(most_waiting) then return {'full', most_waiting} end
  if agent ~= found[1] or tonumber(turn) ~= found[2] + 1 then return {'moved', found[1], found[2] + 1} end
  if not first and is_overloaded() then return {'overloaded'} end
end
redis.call('HSET', key('conversation', ref), 'turns', turn, 'updated', now())
refresh_ttl(ref)
local is_sound, may_claim = pcall(is_next)
may_claim = worker ~= '' and not first and is_sound and may_claim
redis.call('RPUSH', key('turns', ref), record)
redis.call('RPUSH', key('queue', ref), turn)
redis.call('HSET', run, 'input', input)
redis.call('SADD', key('watch', ref, turn), own_channel)
local seq = append(ref, turn, 'turn.queued', event, event, own_channel)
local claimed = {}
if may_claim then
  is_sound, claimed = pcall(claim)
  if not is_sound then claimed = {} end  -- damaged: claim.lua mends it
end
if #claimed > 0 then  -- the caller's worker begins at once
elseif not first then
  make_ready(ref, wake)
elseif on_busy ~= 'enqueue' then
  request_stop(ref, first, on_busy .. ':' .. turn)
end
if idem ~= '' then
  local created = redis.call('HGET', key('conversation', ref), 'created')
  redis.call('SET', key('idem', idem), table.concat({ref, turn, created, digest}, '\n'), 'EX', 86400)
end
return {'ok', seq, unpack(claimed)}
