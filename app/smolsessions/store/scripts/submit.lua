-- Accept a turn: conversation (created if `conversation` holds its record), turn record, queue, log and ready set.
-- - The record is sealed for turn number `turn` of `agent`. If another number or agent is due, the reply is `moved` with both.
-- - `title` is that of the first turn of a conversation that exists. A record that has a title of its own hides it.
-- - `on_busy` (reject, enqueue, interrupt, rollback, steer) says what happens if a turn is open. At most `most_behind` turns wait
--   behind the first.
-- - A known Idempotency-Key (`idem`, with the request's `digest`) returns its turn. A refusal is not recorded.
-- - At most `most_queued` conversations of an agent wait for a thread. An owner may have three times as many of them as places
--   are left, so that each owner leaves a quarter of the places that it found.
-- - A `worker` (or empty) with a free thread, who plays `agents`, gets the lease at once if no other conversation waits for it and
--   no other worker has this one in memory. The claim follows `ok`. A retry gets it anew if only the lost reply named it: the caller
--   names no `worker` if it holds the turn already.
-- ARGV: owner ref agent conversation title turn record input event own_channel follows wake on_busy most_behind most_queued idem digest worker lease_us fingerprint ...agents
local conversation_key, run, journal = key('conversation', ref), key('run', ref, turn), key('journal', ref, turn)
local at, first = now(), nil
local known_agent, created, turns, ttl, committed, fence, fences, head, settings, stored_record = unpack(redis.call('HMGET',
  conversation_key, 'agent', 'created', 'turns', 'ttl', 'committed', 'fence', 'fences', 'head', 'settings', 'record'))
local function is_overloaded()
  local left = most_queued - redis.call('ZCARD', key('ready', agent))
  return redis.call('ZCARD', key('owned', agent, owner)) >= 3 * left
end
local function may_claim()
  local others = {partition .. ':alone', run, journal}
  for _, name in ipairs(agents) do others[#others + 1] = key('ready', name) end
  return worker ~= '' and not first and not is_warm_elsewhere(committed, worker) and redis.call('EXISTS', unpack(others)) == 0
end
local function is_claimed_for_lost_reply()
  return string.match(fence or '', ':(.*):') == worker and first_turn(ref) == turn and redis.call('EXISTS', journal) == 0
end
local function claim(last)
  local stored = redis.call('LLEN', key('steps', ref))
  local chunks = redis.call('HGET', key('variables', ref), '')
  fence = grant_lease(ref, worker, lease_us, at, fences, 'turns', last, 'updated', at)
  redis.call('HSET', run, 'input', input, 'attempts', 1, 'started', at, 'fingerprint', fingerprint, 'effects_at', 0,
    'written', 0, 'claimed', at)
  return {ref, turn, fence, 1, 0, '', '', head or '', stored, 1, '', {}, chunks or '', 0, fingerprint, settings or '',
    '', stored_record or conversation}
end
if (parse_int(turns) or 0) >= tonumber(turn) and redis.pcall('LINDEX', key('turns', ref), turn - 1) == record then
  return {'ok', 1, worker ~= '' and is_claimed_for_lost_reply() and claim(turns) or nil}  -- the reply was lost
end
local known = find_request(idem, digest)
if known then return known end
if not known_agent then
  check_not_damaged(ref)
  if conversation == '' then return {'unknown'} end
  if redis.call('EXISTS', conversation_key) == 1 then return {'taken'} end
  if turn ~= '1' then return {'unknown'} end
else
  if not created then damaged('conversation') end
  if conversation ~= '' and idem ~= '' then return {'taken'} end
  turns = count_turns(ref, turns)
  first = first_turn(ref)
  if first and on_busy == 'reject' then return {'busy', first, waits_until(ref, first) and 1 or 0} end
  if first and redis.call('LLEN', key('queue', ref)) > tonumber(most_behind) then return {'full', most_behind} end
  if agent ~= known_agent or tonumber(turn) ~= turns + 1 then return {'moved', known_agent, turns + 1} end
end
local begins = may_claim()
if not (first or begins) and is_overloaded() then return {'overloaded'} end
if not known_agent then create(owner, ref, agent, conversation) end
local is_claimed, claimed = false, nil
if begins then is_claimed, claimed = pcall(claim, turn) end  -- if not: damaged, and claim.lua repairs it
if not is_claimed then
  redis.call('HSET', conversation_key, 'turns', turn, 'updated', at)
  redis.call('HSET', run, 'input', input)
end
if known_agent then touch(ref, at) end
if title ~= '' then redis.call('HSET', conversation_key, 'title', title) end
if ttl then refresh_ttl(ref) end
redis.call('RPUSH', key('turns', ref), record)
redis.call('RPUSH', key('queue', ref), turn)
add_watcher(ref, turn, own_channel, follows == '1')
local seq = redis.call('RPUSH', key('log', ref, turn), 'turn.queued\n' .. event)
if is_claimed then  -- the caller's worker begins at once
elseif not first then
  make_ready(ref, wake)
elseif on_busy == 'steer' then
  steer(ref, first, turn)
elseif on_busy ~= 'enqueue' then
  request_stop(ref, first, on_busy .. ':' .. turn, wake)
end
if idem ~= '' then
  created = redis.call('HGET', conversation_key, 'created')
  redis.call('SET', key('idem', idem), table.concat({ref, turn, created, digest}, '\n'), 'EX', 86400)
end
return {'ok', seq, is_claimed and claimed or nil}
