-- Take up to `most` conversations, with lease, fence and the head of their queues: owners take turns, and of an owner's
-- conversations the longest ready comes first. A claim counts
-- as an attempt once its `started` is in the journal: before that nothing was done that could be done twice.
-- `agents` are names and fingerprints. A turn that another fingerprint began is left for `patience_us` to those that have it.
-- A turn that one more counted attempt would convict goes to an idle worker, alone: so none is convicted for its neighbours. One
-- that is not idle reserves it and takes nothing until it is.
-- A conversation is left for `affinity_us` to the worker that played it last: that one has its agent at hand.
-- One that has waited for it for `longest_us` goes to any. The first of the answer says that nothing more is to be taken, here or
-- elsewhere, for the sake of such a turn; the second is since when the oldest waits that was left and may be taken (or empty); the
-- third that something was left for so short a time that it is worth waiting for; the fifth whose turn is next here (or empty).
-- The last are conversations that are damaged and were taken out of the ready set. One whose turn can still be ended as broken is
-- claimed with a `flaw`.
-- ARGV: worker lease_us most idle patience_us longest_us most_counted affinity_us ...agents
local claims, skipped, spent, first_place, aside, passed, at, is_enough, is_soon = {}, {}, {}, {}, {}, 0, now(), 0, 0
local alone = partition .. ':alone'
local places = {}  -- of the agents that have something in their sets
most = tonumber(most)

-- An older release knows `ready` alone. Conversations that it put there join the line once they are in front.
local function adopt(agent)
  local first = redis.call('ZRANGE', key('ready', agent), 0, 0)[1]
  if not first or redis.call('ZSCORE', key('share', agent, owner_of(first)), first) then return end
  local found = redis.call('ZRANGE', key('ready', agent), 0, 999, 'WITHSCORES')
  for i = 1, #found, 2 do enter(agent, found[i], found[i + 1]) end
end

-- The owner that has waited longest for its turn, except those with nothing left to take. They stay in front of each line.
local function next_owner()
  local owner, since
  for _, i in ipairs(places) do
    local line, first = key('owners', agents[i]), nil
    repeat
      local place = first_place[i] or 0
      first = redis.call('ZRANGE', line, place, place, 'WITHSCORES')
      if spent[first[1]] then first_place[i] = place + 1 end
    until not spent[first[1]]
    if first[1] and (not owner or tonumber(first[2]) < since) then owner, since = first[1], tonumber(first[2]) end
  end
  return owner
end

local function oldest_of(owner)
  local oldest, score, place
  for _, i in ipairs(places) do
    local share, from, first, since = key('share', agents[i], owner), skipped[i .. ':' .. owner] or 0, nil, nil
    repeat
      first = redis.call('ZRANGE', share, from, from)[1]
      since = first and tonumber(redis.call('ZSCORE', key('ready', agents[i]), first))
      if first and not since then  -- an older release's worker took it
        leave(agents[i], first)
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
    spent[owner], passed = true, passed + 1
  end
end

local function skip(ref, place)
  local name = place .. ':' .. owner_of(ref)
  skipped[name], passed = (skipped[name] or 0) + 1, passed + 1
end

-- Take a conversation out, and send its owner to the end of the line. Owners of one claim keep their order there.
local function take(ref, place)
  leave(agents[place], ref)
  for _, i in ipairs(places) do redis.call('ZADD', key('owners', agents[i]), 'XX', at + #claims, owner_of(ref)) end
end

local function oldest_since()
  local oldest
  for _, i in ipairs(places) do
    local first = redis.call('ZRANGE', key('ready', agents[i]), 0, 0, 'WITHSCORES')
    if first[1] and (not oldest or tonumber(first[2]) < oldest) then oldest = tonumber(first[2]) end
  end
  return oldest
end

local function begun(ref, turn, attempt)
  return redis.call('HEXISTS', key('journal', ref, turn), 'started:' .. attempt) == 1
end

-- A score that lies in the future is no score of this service: whoever it belongs to has waited long enough.
local function waited_us(score)
  return at >= score and at - score or math.huge
end

local function is_another_ones(ref, score)
  if waited_us(score) >= tonumber(affinity_us) then return false end
  local last = string.match(redis.call('HGET', key('conversation', ref), 'committed') or '', '^%d+:(.-):')
  return last and last ~= worker
end

local function reserve()
  if not redis.call('SET', alone, worker, 'NX', 'PX', 10000) and redis.call('GET', alone) ~= worker then return false end
  redis.call('PEXPIRE', alone, 10000)
  return true
end

-- Claim a conversation, or pass it over. True: nothing more is to be taken.
local function consider(ref, score, place, flaw)
  local conversation, turn = key('conversation', ref), first_of(ref)
  local run = turn and key('run', ref, turn)
  local known = turn and redis.call('HMGET', run, 'attempts', 'counted', 'fingerprint', 'effects') or {}
  local attempt, counted, effects = whole(known[1] or '0'), whole(known[2] or '0'), whole(known[4] or '0')
  if not (attempt and counted and effects) or counted > LARGEST_COUNTED then damaged('run') end
  local suspect = counted == most_counted - 1 and waited_us(score) < tonumber(longest_us)
  if suspect and (idle ~= '1' or #claims > 0) then
    if #claims == 0 and reserve() then
      is_enough = 1
      return true
    end
    return skip(ref, place)
  elseif turn and flaw == '' and is_another_ones(ref, score) then
    is_soon = 1
    return skip(ref, place)
  elseif known[3] and known[3] ~= agents[place + 1] and flaw == '' and begun(ref, turn, 1)
    and waited_us(score) < tonumber(patience_us) then
    return skip(ref, place)
  end
  take(ref, place)
  if not turn then
    passed = passed + 1
    return
  end
  local fence = redis.call('HINCRBY', conversation, 'fences', 1) .. ':' .. worker .. ':' .. at
  redis.call('HSET', conversation, 'fence', fence)
  redis.call('ZADD', leases, at + lease_us, ref)
  if attempt == 0 or begun(ref, turn, attempt) then
    attempt = redis.call('HINCRBY', run, 'attempts', 1)
  end
  if (attempt == 1 and effects > 0) or (attempt > 1 and not (known[3] and begun(ref, turn, attempt - 1))) then
    flaw = 'journal'
  end
  redis.call('HSETNX', run, 'started', at)
  if attempt == 1 then redis.call('HSET', run, 'fingerprint', agents[place + 1]) end
  redis.call('HSET', run, 'effects_at', effects, 'written', 0, 'claimed', at)
  local state = redis.call('HMGET', run, 'started', 'input', 'cancel', 'fingerprint')
  local head = redis.call('HMGET', conversation, 'generation', 'head', 'terms')
  claims[#claims + 1] = {ref, turn, fence, attempt, at - (whole(state[1]) or damaged('run')),
    redis.call('LINDEX', key('turns', ref), turn - 1) or '', state[2] or '', head[1] or '', head[2] or '',
    redis.call('LLEN', key('steps', ref, head[1] or '')), redis.call('LLEN', key('log', ref, turn)), state[3] or '',
    redis.call('SRANDMEMBER', key('watch', ref, turn), MOST_WATCHING),
    redis.call('HGET', key('variables', ref, head[1] or ''), '') or '', counted, state[4] or '', head[3] or '', flaw}
  if suspect then
    if redis.call('GET', alone) == worker then redis.call('DEL', alone) end
    is_enough = 1
  end
  return suspect
end

local function consider_damaged(ref, score, place)
  local queue, turn = key('queue', ref), nil
  delete_unless('list', queue)
  for _ = 1, MOST_QUEUED do
    turn = redis.call('LINDEX', queue, 0)
    if not turn or whole(turn) then break end
    redis.call('LPOP', queue)
  end
  if turn then clear_damage(ref, turn) end
  return consider(ref, score, place, 'keys')
end

local function set_aside(ref, place)
  leave(agents[place], ref)
  redis.call('ZREM', leases, ref)
  passed = passed + 1
  aside[#aside + 1] = ref
end

local function first_look()
  places = {}
  for i = 1, #agents, 2 do
    if redis.call('EXISTS', key('ready', agents[i]), key('owners', agents[i])) > 0 then
      places[#places + 1] = i
      adopt(agents[i])
    end
  end
  return next_ready()
end

-- Delete sets of another type. `ready` holds the same conversations as the shares of all `owners`, so one is rebuilt from the
-- other. A conversation that is in neither stays unclaimed until its turns are cancelled or it is deleted: no other key lists it.
local function restore(agent)
  local ready, owners, since, refs = key('ready', agent), key('owners', agent), {}, {}
  delete_unless('zset', ready, aside)
  delete_unless('zset', owners, aside)
  local function add(name)
    local some = redis.call('ZRANGE', name, 0, 999, 'WITHSCORES')
    for i = 1, #some, 2 do
      if not since[some[i]] then refs[#refs + 1] = some[i] end
      since[some[i]] = some[i + 1]
    end
  end
  for _, owner in ipairs(redis.call('ZRANGE', owners, 0, 999)) do
    delete_unless('zset', key('share', agent, owner), aside)
    add(key('share', agent, owner))
  end
  add(ready)
  table.sort(refs, function(one, other) return tonumber(since[one]) < tonumber(since[other]) end)
  for _, ref in ipairs(refs) do
    delete_unless('zset', key('share', agent, owner_of(ref)), aside)
    if not redis.call('ZSCORE', leases, ref) then enter(agent, ref, since[ref]) end
  end
end

local is_sound, ref, score, place = pcall(first_look)
if not is_sound then
  delete_unless('zset', leases, aside)
  for i = 1, #agents, 2 do restore(agents[i]) end
  ref, score, place = first_look()
end
local is_last = false
while ref and not is_last and #claims < most and passed < 1000 do
  is_sound, is_last = pcall(consider, ref, score, place, '')
  if not is_sound then is_sound, is_last = pcall(consider_damaged, ref, score, place) end
  if not is_sound then
    set_aside(ref, place)
    is_last = false
  end
  ref, score, place = next_ready()
end
local since = ref and math.max(0, math.min(oldest_since(), at))
return {is_enough, since and string.format('%.0f', since) or '', is_soon, claims, ref and owner_of(ref) or '', aside}
