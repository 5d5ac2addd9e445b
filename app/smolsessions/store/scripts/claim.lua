-- Claim up to `most` conversations: lease, fence, and the first turn of the queue. Owners take turns. Within one owner the
-- conversation that has been ready longest comes first.
-- `agents` are names and fingerprints.
-- - A claim counts as an attempt once its `started` is in the journal. Before that, no effect can have happened.
-- - A turn that another fingerprint has started is reserved for workers with that fingerprint for `patience_us`.
-- - A conversation is reserved for its last worker for `affinity_us` while that one is connected, as it has the agent in memory.
-- - A suspect turn, whose next counted attempt would fail it, goes to an idle worker, alone: no turn fails for its neighbour.
--   A busy worker reserves it, and claims nothing until it is idle. After `longest_us` any worker may take it.
-- - `rooms` are lines: an owner, and how many more conversations this worker may claim of it. It may claim `most_each` of another
--   owner. What lies beyond stays ready, and hides no conversation of another owner.
-- - A damaged conversation is claimed with a `flaw` if its turn can still be ended. Otherwise it is removed from the ready set.
-- Returns:
--   1. 1 if no more conversations must be claimed in any partition, because of a suspect turn
--   2. since when the oldest unclaimed conversation waits (or empty)
--   3. 1 if a conversation is reserved for so short a time that waiting for it is worth while
--   4. the claims
--   5. the owner that is next (or empty)
--   6. names of conversations and keys that were removed as damaged
-- ARGV: worker lease_us most idle patience_us longest_us most_counted affinity_us most_each rooms ...agents
local claims, skipped, exhausted, first_place, removed, passed, at, is_enough, is_soon = {}, {}, {}, {}, {}, 0, now(), 0, 0
local alone = partition .. ':alone'
local places = {}  -- of the agents with ready conversations
most = tonumber(most)
local room_of = {}
for owner, room in string.gmatch(rooms, '([^\n]+)\n(-?%d+)\n') do room_of[owner] = tonumber(room) end

local function is_passed(owner)
  return owner and (exhausted[owner] or (room_of[owner] or tonumber(most_each)) <= 0)
end

-- Return the owner that has waited longest, except those that are passed, which stay at the front of each set.
local function next_owner()
  local owner, since
  for _, i in ipairs(places) do
    local line, first = key('owners', agents[i]), nil
    repeat
      local place = first_place[i] or 0
      first = redis.call('ZRANGE', line, place, place, 'WITHSCORES')
      if is_passed(first[1]) then first_place[i] = place + 1 end
    until not is_passed(first[1])
    if first[1] and (not owner or tonumber(first[2]) < since) then owner, since = first[1], tonumber(first[2]) end
  end
  return owner
end

local function oldest_of(owner)
  local oldest, score, place
  for _, i in ipairs(places) do
    local owned, from, first, since = key('owned', agents[i], owner), skipped[i .. ':' .. owner] or 0, nil, nil
    repeat
      first = redis.call('ZRANGE', owned, from, from)[1]
      since = first and tonumber(redis.call('ZSCORE', key('ready', agents[i]), first))
      if first and not since then  -- the sets disagree
        remove_ready(agents[i], first)
        passed = passed + 1
      end
    until since or not first or passed >= 2000
    if since and (not oldest or since < score) then oldest, score, place = first, since, i end
  end
  return oldest, score, place
end

local function next_ready()
  while passed < 2000 do
    local owner = next_owner()
    if not owner then return nil end
    local ref, score, place = oldest_of(owner)
    if ref then return ref, score, place end
    exhausted[owner], passed = true, passed + 1
  end
end

local function skip(ref, place)
  local name = place .. ':' .. owner_of(ref)
  skipped[name], passed = (skipped[name] or 0) + 1, passed + 1
end

-- Remove a conversation, and move its owner to the end. Owners of one claim keep their order there.
local function take(ref, place)
  remove_ready(agents[place], ref)
  local owner = owner_of(ref)
  room_of[owner] = (room_of[owner] or tonumber(most_each)) - 1
  for _, i in ipairs(places) do redis.call('ZADD', key('owners', agents[i]), 'XX', at + #claims, owner) end
end

local function oldest_since()
  local oldest
  for _, i in ipairs(places) do
    local first = redis.call('ZRANGE', key('ready', agents[i]), 0, 0, 'WITHSCORES')
    if first[1] and (not oldest or tonumber(first[2]) < oldest) then oldest = tonumber(first[2]) end
  end
  return oldest
end

local function has_started(ref, turn, attempt)
  return redis.call('HEXISTS', key('journal', ref, turn), 'started:' .. attempt) == 1
end

-- A score in the future was not written by the service: its conversation has waited long enough.
local function waited_us(score)
  return at >= score and at - score or math.huge
end

local function is_reserved_for_another(ref, score)
  return waited_us(score) < tonumber(affinity_us) and is_warm_elsewhere(redis.call('HGET', key('conversation', ref), 'committed'), worker)
end

-- A full store refuses the SET: raised, that would pass for damage of the conversation.
local function reserve()
  local set = redis.pcall('SET', alone, worker, 'NX', 'PX', 10000)
  if (not set or set.err) and redis.call('GET', alone) ~= worker then return false end
  redis.call('PEXPIRE', alone, 10000)
  return true
end

-- Claim a conversation, or skip it. Returns true if no more must be claimed.
local function consider(ref, score, place, flaw)
  local conversation, turn = key('conversation', ref), first_turn(ref)
  local run = turn and key('run', ref, turn)
  local known = turn and redis.call('HMGET', run, 'attempts', 'counted', 'fingerprint', 'effects') or {}
  local attempt, counted, effects = parse_int(known[1] or '0'), parse_int(known[2] or '0'), parse_int(known[4] or '0')
  if not (attempt and counted and effects) or counted > MAX_COUNTED then damaged('run') end
  local suspect = counted == most_counted - 1 and waited_us(score) < tonumber(longest_us)
  if suspect and (idle ~= '1' or #claims > 0) then
    if #claims == 0 and reserve() then
      is_enough = 1
      return true
    end
    return skip(ref, place)
  elseif turn and flaw == '' and is_reserved_for_another(ref, score) then
    is_soon = 1
    return skip(ref, place)
  elseif known[3] and known[3] ~= agents[place + 1] and flaw == '' and has_started(ref, turn, 1)
    and waited_us(score) < tonumber(patience_us) then
    return skip(ref, place)
  end
  take(ref, place)
  if not turn then
    passed = passed + 1
    return
  end
  local fence = grant_lease(ref, worker, lease_us, at, redis.call('HGET', conversation, 'fences'))
  if attempt == 0 or has_started(ref, turn, attempt) then
    attempt = redis.call('HINCRBY', run, 'attempts', 1)
  end
  if (attempt == 1 and effects > 0) or (attempt > 1 and not (known[3] and has_started(ref, turn, attempt - 1))) then
    flaw = 'journal'
  end
  redis.call('HSETNX', run, 'started', at)
  if attempt == 1 then redis.call('HSET', run, 'fingerprint', agents[place + 1]) end
  redis.call('HSET', run, 'effects_at', effects, 'written', 0, 'claimed', at)
  local state = redis.call('HMGET', run, 'started', 'input', 'cancel', 'fingerprint', 'steers')
  local head = redis.call('HMGET', conversation, 'head', 'settings', 'record')
  claims[#claims + 1] = {ref, turn, fence, attempt, at - (parse_int(state[1]) or damaged('run')),
    redis.call('LINDEX', key('turns', ref), turn - 1) or '', state[2] or '', head[1] or '',
    redis.call('LLEN', key('steps', ref)), redis.call('LLEN', key('log', ref, turn)), state[3] or (state[5] and 'steer') or '',
    redis.call('SRANDMEMBER', key('watch', ref, turn), MAX_WATCHERS),
    redis.call('HGET', key('variables', ref), '') or '', counted, state[4] or '', head[2] or '', flaw, head[3] or ''}
  if suspect then
    if redis.call('GET', alone) == worker then redis.call('DEL', alone) end
    is_enough = 1
  end
  return suspect
end

local function consider_damaged(ref, score, place)
  local queue, turn = key('queue', ref), nil
  delete_wrong_type('list', queue)
  for _ = 1, MAX_QUEUED do
    turn = redis.call('LINDEX', queue, 0)
    if not turn or parse_int(turn) then break end
    redis.call('LPOP', queue)
  end
  if turn then clear_damage(ref, turn) end
  return consider(ref, score, place, 'keys')
end

local function remove_damaged(ref, place)
  remove_ready(agents[place], ref)
  redis.call('ZREM', leases, ref)
  passed = passed + 1
  removed[#removed + 1] = ref
end

local function first_candidate()
  places = {}
  for i = 1, #agents, 2 do
    if redis.call('EXISTS', key('ready', agents[i]), key('owners', agents[i])) > 0 then
      places[#places + 1] = i
    end
  end
  return next_ready()
end

-- Delete sets of another type, and rebuild them: `ready` holds the same conversations as the `owned` sets of all `owners`. No other
-- key lists conversations: one that is missing in both stays unclaimed until its turns are cancelled or it is deleted.
local function restore(agent)
  local ready, owners, since, refs = key('ready', agent), key('owners', agent), {}, {}
  delete_wrong_type('zset', ready, removed)
  delete_wrong_type('zset', owners, removed)
  local function add(name)
    local some = redis.call('ZRANGE', name, 0, 999, 'WITHSCORES')
    for i = 1, #some, 2 do
      if not since[some[i]] then refs[#refs + 1] = some[i] end
      since[some[i]] = some[i + 1]
    end
  end
  for _, owner in ipairs(redis.call('ZRANGE', owners, 0, 999)) do
    delete_wrong_type('zset', key('owned', agent, owner), removed)
    add(key('owned', agent, owner))
  end
  add(ready)
  table.sort(refs, function(one, other) return tonumber(since[one]) < tonumber(since[other]) end)
  for _, ref in ipairs(refs) do
    delete_wrong_type('zset', key('owned', agent, owner_of(ref)), removed)
    if not redis.call('ZSCORE', leases, ref) then add_ready(agent, ref, since[ref]) end
  end
end

local is_sound, ref, score, place = pcall(first_candidate)
if not is_sound then
  delete_wrong_type('zset', leases, removed)
  for i = 1, #agents, 2 do restore(agents[i]) end
  ref, score, place = first_candidate()
end
local is_last = false
while ref and not is_last and #claims < most and passed < 1000 do
  is_sound, is_last = pcall(consider, ref, score, place, '')
  if not is_sound then is_sound, is_last = pcall(consider_damaged, ref, score, place) end
  if not is_sound then
    remove_damaged(ref, place)
    is_last = false
  end
  ref, score, place = next_ready()
end
local since = ref and math.max(0, math.min(oldest_since(), at))
return {is_enough, since and string.format('%.0f', since) or '', is_soon, claims, ref and owner_of(ref) or '', removed}
