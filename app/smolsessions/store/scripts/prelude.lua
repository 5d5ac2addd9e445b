-- Functions shared by all scripts. All keys contain the partition's tag (`{p000}`), so a script runs on one node of a
-- cluster. Times are microseconds of the server's clock.

local ENDS_WITH_ZERO = {steps = true, variables = true, pending = true}  -- names of keys, as they are stored since the first form

local function key(kind, name, part)
  part = part or (ENDS_WITH_ZERO[kind] and 0)
  if part then return partition .. ':' .. kind .. ':' .. name .. ':' .. part end
  return partition .. ':' .. kind .. ':' .. name
end

local leases = partition .. ':leases'
local MAX_QUEUED = 10000  -- entries of one queue that a script reads
local MAX_WATCHERS = 1000  -- processes that get the events of one turn
local MAX_LONG_LOGS = 100000  -- of one conversation
local MAX_COUNTED = 100  -- more attempts than this cannot count against one turn

-- Raise `seal_broken` for a conversation whose keys are not as the service writes them.
local function damaged(what)
  error({err = 'DAMAGED ' .. what})
end

-- Parse a whole number, the only kind that the store keeps. Returns nil for anything else.
local function parse_int(text)
  return text and #text <= 16 and string.match(text, '^%d+$') and tonumber(text) or nil
end

-- Raise if a conversation lost its fields, unless its id was never used or was deleted.
local function check_not_damaged(ref)
  local conversation = key('conversation', ref)
  if redis.call('EXISTS', conversation) == 1 and redis.call('HEXISTS', conversation, 'deleted') == 0 then
    damaged('conversation')
  end
end

-- Return the number of the last turn. It equals the number of records, which bounds all loops over turns. `turns` is the
-- field of that name, if it was read before.
local function count_turns(ref, turns)
  local stored = redis.call('LLEN', key('turns', ref))
  turns = turns or redis.call('HGET', key('conversation', ref), 'turns')
  if turns ~= string.format('%d', stored) then damaged('turns') end
  return stored
end

-- Return the number of the first open turn as text, or nil.
local function first_turn(ref)
  local first = redis.call('LINDEX', key('queue', ref), 0)
  if first and not parse_int(first) then damaged('queue') end
  return first or nil
end

-- Delete a key that has another type. Returns true if so, and appends it to `deleted`.
local function delete_wrong_type(expected, name, deleted)
  local found = redis.call('TYPE', name).ok
  if found == expected or found == 'none' then return false end
  redis.call('DEL', name)
  if deleted then deleted[#deleted + 1] = name end
  return true
end

-- Rebuild `longlogs` if it has another type. It holds the turns whose logs have no time to live.
local function restore_long_logs(ref)
  if not delete_wrong_type('set', key('longlogs', ref)) then return end
  local turns = redis.pcall('LLEN', key('turns', ref))
  for turn = 1, type(turns) == 'number' and math.min(turns, MAX_LONG_LOGS) or 0 do
    if redis.call('TTL', key('log', ref, turn)) == -1 then redis.call('SADD', key('longlogs', ref), turn) end
  end
end

-- Delete all that prevents a claim or commit of a turn: keys of another type, counters that are no numbers or too large.
local function clear_damage(ref, turn)
  local types = {
    list = {key('turns', ref), key('queue', ref), key('oldest', ref), key('steps', ref), key('log', ref, turn)},
    hash = {key('images', ref), key('heads', ref), key('old', ref), key('variables', ref),
      key('pending', ref), key('run', ref, turn), key('journal', ref, turn), key('logs', ref)},
    set = {key('watch', ref, turn)},
  }
  for expected, names in pairs(types) do
    for _, name in ipairs(names) do delete_wrong_type(expected, name) end
  end
  restore_long_logs(ref)
  for _, name in ipairs({'attempts', 'counted', 'effects', 'effects_at', 'written', 'claimed', 'started', 'waits', 'waits_since'}) do
    local value = redis.call('HGET', key('run', ref, turn), name)
    local number = value and parse_int(value)
    if value and (not number or (name == 'counted' and number > MAX_COUNTED)) then
      redis.call('HDEL', key('run', ref, turn), name)
    end
  end
  if not parse_int(redis.call('HGET', key('conversation', ref), 'fences')) then
    redis.call('HDEL', key('conversation', ref), 'fences')
  end
end

-- Call a function with parts of a list: the server takes a limited number of arguments.
local function in_pieces(values, call)
  for start = 1, #values, 500 do call(unpack(values, start, math.min(start + 499, #values))) end
end

local function now()
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2]
end

local function owner_of(ref)
  return string.match(ref, '^(.*)/') or ''
end

-- Note the time of a change. `owner` lists an owner's conversations by creation, `recent` by their last change. A damaged list
-- stops no turn.
local function touch(ref, at)
  redis.pcall('ZADD', key('recent', owner_of(ref)), at, ref)
end

-- Create a conversation.
local function create(owner, ref, agent, record)
  local at = now()
  redis.call('ZADD', key('owner', owner), at, ref)
  touch(ref, at)
  redis.call('HSET', key('conversation', ref), 'agent', agent, 'record', record, 'created', at, 'updated', at,
    'turns', 0)
end

-- Let a process get the events of a turn. `+` and its channel note that it has a reader who follows them: the turn's worker then
-- writes each at once.
local function add_watcher(ref, turn, channel, follows)
  redis.call('SADD', key('watch', ref, turn), channel)
  if follows then redis.call('SADD', key('watch', ref, turn), '+' .. channel) end
end

-- Publish an event to all processes with readers, except the writer, which has the reply. The payload of a final event is
-- the turn's record.
local function publish(ref, turn, seq, name, payload, own_channel)
  local watch, replica = key('watch', ref, turn), partition .. ':replica:'
  for _, channel in ipairs(redis.call('SRANDMEMBER', watch, MAX_WATCHERS)) do
    if channel ~= own_channel and string.sub(channel, 1, #replica) == replica then
      redis.call('SPUBLISH', channel, table.concat({ref, turn, seq, name, payload}, '\n'))
    end
  end
end

local function append(ref, turn, name, blob, payload, own_channel)
  local seq = redis.call('RPUSH', key('log', ref, turn), name .. '\n' .. blob)
  publish(ref, turn, seq, name, payload, own_channel)
  return seq
end

-- Delete the working keys of a finished turn, and `more` keys. Its log stays for `log_ttl_s`.
local function delete_working_keys(ref, turn, ...)
  redis.call('UNLINK', key('run', ref, turn), key('journal', ref, turn), key('watch', ref, turn), ...)
end

local function close_turn(ref, turn, log_ttl_s)
  delete_working_keys(ref, turn)
  if log_ttl_s ~= '0' then
    redis.call('EXPIRE', key('log', ref, turn), log_ttl_s)
  elseif redis.call('EXISTS', key('log', ref, turn)) == 1 then
    redis.call('SADD', key('longlogs', ref), turn)
  end
end

-- End a queued turn whose message has joined a running turn, with the record that says so. `taken` is the time to live of its log.
local function end_steered(ref, turn, number, record)
  local log_ttl_s, run = redis.call('HGET', key('run', ref, number), 'taken'), key('run', ref, turn)
  if not log_ttl_s then return end
  local steers = ' ' .. (redis.call('HGET', run, 'steers') or '') .. ' '
  steers = string.match(string.gsub(steers, ' ' .. number .. ' ', ' ', 1), '^ *(.-) *$')
  if steers == '' then redis.call('HDEL', run, 'steers') else redis.call('HSET', run, 'steers', steers) end
  redis.call('LSET', key('turns', ref), number - 1, record)
  redis.call('LREM', key('queue', ref), 1, number)
  append(ref, number, 'turn.cancelled', '', record, '')
  close_turn(ref, number, log_ttl_s)
end

-- Append the writes of a running turn. The writes of one claim are numbered from 1. The first entry has number `serial`.
-- Returns `ok` and the numbers of the events. A repeated write changes nothing, and its events have number 0.
-- A write whose predecessor is missing is refused as `behind`. A step or event after a gap is refused as `gap`. The entries
-- before it are written.
-- An entry is a text with a letter for each of its parts, then two arguments of each part: `l` length of the log before its
-- events and nothing, `s` index and sealed step, `i` name and sealed image, `v` name and sealed chunk of variables (empty if it
-- was deleted), `x` name of a chunk and its new name (empty: it is removed), `t` number and sealed record of a turn whose message the
-- write takes, `k` key in the journal and result, `e` name and sealed event. `l` and `s` come first. The chunks of a large step are
-- written under names with a mark. They are valid once the chunk without a name holds that mark, and then get their own names.
local function append_writes(ref, turn, own_channel, serial, entries)
  local run, journal, steps = key('run', ref, turn), key('journal', ref, turn), key('steps', ref)
  local images, pending = key('images', ref), key('pending', ref)
  local known = redis.call('HMGET', run, 'written', 'effects')
  local written, effects = parse_int(known[1] or '0'), parse_int(known[2] or '0')
  local number, length, seqs, i, chunks, moves = tonumber(serial), nil, {}, 1, {}, {}
  if not (written and effects) then damaged('run') end
  if number > written + 1 then return 'behind' end
  local function save_chunks()
    in_pieces(chunks, function(...) redis.call('HSET', pending, ...) end)
    in_pieces(moves, function(...)
      local part, from, moved = {...}, {}, {}
      for i = 1, #part, 2 do from[#from + 1] = part[i] end
      for i, chunk in ipairs(redis.call('HMGET', pending, unpack(from))) do
        if chunk and part[2 * i] ~= '' then moved[#moved + 1], moved[#moved + 2] = part[2 * i], chunk end
      end
      if #moved > 0 then redis.call('HSET', pending, unpack(moved)) end
      redis.call('HDEL', pending, unpack(from))
    end)
    chunks, moves = {}, {}
  end
  local function save()
    save_chunks()
    if number - 1 > written then redis.call('HSET', run, 'written', number - 1, 'effects', effects) end
  end
  while i <= #entries do
    local parts, is_new = entries[i], number > written
    for place = 1, #parts do
      local part, name, data = string.sub(parts, place, place), entries[i + 1], entries[i + 2]
      local is_gap = false
      if part == 'e' then
        seqs[#seqs + 1] = is_new and append(ref, turn, name, data, data, own_channel) or 0
      elseif not is_new then  -- the store has it
      elseif part == 'l' then
        is_gap = redis.call('LLEN', key('log', ref, turn)) < tonumber(name)
      elseif part == 's' then
        length = length or redis.call('LLEN', steps)
        is_gap = length < tonumber(name)
        if length == tonumber(name) then length = redis.call('RPUSH', steps, data) end
      elseif part == 'i' then
        redis.call('HSETNX', images, name, data)
      elseif part == 'v' then
        if #moves > 0 then save_chunks() end
        chunks[#chunks + 1], chunks[#chunks + 2] = name, data
      elseif part == 'x' then
        moves[#moves + 1], moves[#moves + 2] = name, data
      elseif part == 't' then
        end_steered(ref, turn, name, data)
      elseif redis.call('HSETNX', journal, name, data) == 1 and data ~= '' then
        effects = effects + 1
      end
      if is_gap then
        save()
        return 'gap'
      end
      i = i + 2
    end
    i, number = i + 1, number + 1
  end
  save()
  return 'ok', seqs
end

local function holds_lease(ref, fence)
  return redis.call('HGET', key('conversation', ref), 'fence') == fence
end

-- Give a worker the lease of a conversation that has had `fences` of them, and return its fence. The rest are more fields.
local function grant_lease(ref, worker, lease_us, at, fences, ...)
  fences = (parse_int(fences or '0') or damaged('fences')) + 1
  local fence = fences .. ':' .. worker .. ':' .. at
  redis.call('ZADD', leases, at + lease_us, ref)
  redis.call('HSET', key('conversation', ref), 'fences', fences, 'fence', fence, ...)
  return fence
end

-- Return true if another worker played the last turn (`committed` is its token), and is connected: it has the agent in memory.
local function is_warm_elsewhere(committed, worker)
  local last = string.match(committed or '', '^%d+:(.-):')
  return last and last ~= worker and redis.call('PUBSUB', 'SHARDNUMSUB', partition .. ':stop:' .. last)[2] > 0
end

-- Ready set of an agent: `ready` holds its conversations by the start of their wait, `owned` those of one owner. `owners`
-- holds the owners by the start of each owner's wait.
local function add_ready(agent, ref, at)
  local owner = owner_of(ref)
  redis.call('ZADD', key('ready', agent), 'NX', at, ref)
  redis.call('ZADD', key('owned', agent, owner), 'NX', at, ref)
  redis.call('ZADD', key('owners', agent), 'NX', at, owner)
end

local function remove_ready(agent, ref)
  local owner = owner_of(ref)
  redis.call('ZREM', key('ready', agent), ref)
  redis.call('ZREM', key('owned', agent, owner), ref)
  if redis.call('EXISTS', key('owned', agent, owner)) == 0 then redis.call('ZREM', key('owners', agent), owner) end
end

local function make_ready(ref, wake)
  local agent = redis.call('HGET', key('conversation', ref), 'agent') or damaged('conversation')
  add_ready(agent, ref, now())
  if wake ~= '' then redis.call('SPUBLISH', wake, owner_of(ref)) end
end

-- Turns that wait for a person. The field `waits` of a turn's `run` holds when its wait expires, in microseconds. `waiting` holds their
-- conversations by that time.
local waiting = partition .. ':waiting'

local function waits_until(ref, turn)
  return turn and parse_int(redis.call('HGET', key('run', ref, turn), 'waits'))
end

-- Make a conversation ready whose open turn no worker plays: it waits, or its wait was lost.
local function end_wait(ref, turn, wake)
  redis.call('HDEL', key('run', ref, turn), 'waits', 'waits_since')
  redis.pcall('ZREM', waiting, ref)
  if redis.call('HEXISTS', key('conversation', ref), 'fence') == 0 then make_ready(ref, wake) end
end

-- Logs without a time to live (`log_ttl_s` is 0): `logs` holds packed logs by turn. A log that is not packed stays a list,
-- and `longlogs` holds its turn. Raise if one of the two has another type.
local function check_logs(ref)
  redis.call('HLEN', key('logs', ref))
  redis.call('SCARD', key('longlogs', ref))
end

local function long_logs(ref)
  return redis.call('SRANDMEMBER', key('longlogs', ref), MAX_LONG_LOGS)
end

-- Send a message to the worker that claimed the conversation last.
local function notify_worker(ref, turn, message)
  local worker = string.match(redis.call('HGET', key('conversation', ref), 'fence') or '', ':(.*):')
  if worker then redis.call('SPUBLISH', partition .. ':stop:' .. worker, ref .. '\n' .. turn .. '\n' .. message) end
end

-- Request a turn to stop: `1` (plain), `interrupt:N` or `rollback:N` (by turn N). A stronger request stays. The worker gets
-- the strongest as a message, and finds it when it renews its lease or claims the turn again. A waiting turn is claimed again.
local function request_stop(ref, turn, flag, wake)
  local strength, run = {interrupt = 1, rollback = 2}, key('run', ref, turn)
  local current = redis.call('HGET', run, 'cancel')
  if not current or (strength[string.match(flag, '^%a+') or ''] or 0) > (strength[string.match(current, '^%a+') or ''] or 0) then
    redis.call('HSET', run, 'cancel', flag)
    current = flag
  end
  notify_worker(ref, turn, current)
  end_wait(ref, turn, wake)
end

-- Let the message of a queued turn join an open one. `steers` holds the numbers of such turns. The worker learns of them as of a stop.
local function steer(ref, turn, number)
  local run = key('run', ref, turn)
  local before = redis.call('HGET', run, 'steers')
  redis.call('HSET', run, 'steers', before and before .. ' ' .. number or number)
  notify_worker(ref, turn, 'steer')
end

-- Restart the time to live of a conversation, if it has one.
local function refresh_ttl(ref)
  local ttl = parse_int(redis.call('HGET', key('conversation', ref), 'ttl'))
  if not ttl then return end
  local expires = string.format('%.0f', now() + ttl)
  redis.call('HSET', key('conversation', ref), 'expires', expires)
  redis.call('ZADD', partition .. ':expiring', expires, ref)
end

-- Set the time to live of a conversation in microseconds, or remove it (empty).
local function set_ttl(ref, ttl)
  if ttl ~= '' then
    redis.call('HSET', key('conversation', ref), 'ttl', ttl)
    refresh_ttl(ref)
  else
    redis.call('HDEL', key('conversation', ref), 'ttl', 'expires')
    redis.call('ZREM', partition .. ':expiring', ref)
  end
end

-- Keep the present head as the head after a turn. Steps are only appended, so the head identifies the steps.
local function keep_head(ref, turn)
  redis.call('HSET', key('heads', ref), turn, redis.call('HGET', key('conversation', ref), 'head') or '')
end

-- Keep chunks of the variables by their tags for rollbacks: the newest 64 MiB of a conversation.
local function keep_chunks(ref, blobs)
  if #blobs == 0 then return end
  local old, order, conversation = key('old', ref), key('oldest', ref), key('conversation', ref)
  local size = parse_int(redis.call('HGET', conversation, 'old_bytes')) or 0
  in_pieces(blobs, function(...)
    local part, tags, new, kept = {...}, {}, {}, {}
    for i, blob in ipairs(part) do tags[i] = string.sub(blob, -16) end
    for i, known in ipairs(redis.call('HMGET', old, unpack(tags))) do
      if not known then
        new[#new + 1], kept[#kept + 1], kept[#kept + 2] = tags[i], tags[i], part[i]
        size = size + #part[i]
      end
    end
    if #new > 0 then
      redis.call('HSET', old, unpack(kept))
      redis.call('RPUSH', order, unpack(new))
    end
  end)
  while size > 67108864 do
    local oldest = redis.call('LPOP', order)
    if not oldest then break end
    size = size - redis.call('HSTRLEN', old, oldest)
    redis.call('HDEL', old, oldest)
  end
  redis.call('HSET', conversation, 'old_bytes', string.format('%.0f', math.max(0, size)))
end

-- Write chunks of the variables, or delete those that are empty. The chunk with an empty name is the sealed list.
local function put_chunks(ref, chunks)
  local variables = key('variables', ref)
  in_pieces(chunks, function(...)
    local part, names, written, deleted, replaced = {...}, {}, {}, {}, {}
    for i = 1, #part, 2 do
      names[#names + 1] = part[i]
      if part[i + 1] == '' then
        deleted[#deleted + 1] = part[i]
      else
        written[#written + 1], written[#written + 2] = part[i], part[i + 1]
      end
    end
    for i, before in ipairs(redis.call('HMGET', variables, unpack(names))) do
      if before and before ~= part[2 * i] then replaced[#replaced + 1] = before end
    end
    if #written > 0 then redis.call('HSET', variables, unpack(written)) end
    if #deleted > 0 then redis.call('HDEL', variables, unpack(deleted)) end
    keep_chunks(ref, replaced)
  end)
end

-- Large keys are copied, imported or replaced in pieces, so that no script takes long. Until the last script names them they are
-- staged, and expire if it never comes.
local STAGED_S = 600
local PIECE_BYTES = 1048576

-- Give staged keys the names of a conversation.
local function unstage(staged, kinds, ref)
  for _, kind in ipairs(kinds) do
    local from, to = key('staged', staged, kind), key(kind, ref)
    redis.call('UNLINK', to)
    if redis.call('EXISTS', from) == 1 then
      redis.call('RENAME', from, to)
      redis.call('PERSIST', to)
    end
  end
end

-- Return a chunk by name and tag: current, old, or of the running turn. It is false if it is not kept.
local function find_chunk(ref, name, tag)
  local blob = redis.call('HGET', key('variables', ref), name)
  if blob and string.sub(blob, -16) == tag then return blob end
  blob = redis.call('HGET', key('old', ref), tag)
  if blob then return blob end
  blob = redis.call('HGET', key('pending', ref), name)
  return blob and string.sub(blob, -16) == tag and blob
end

-- Delete all keys of a conversation. A tombstone reserves the id for a while, as a new conversation begins with turn 1.
local function delete_conversation(ref, owner, tombstone_s)
  local conversation = key('conversation', ref)
  local agent = redis.pcall('HMGET', conversation, 'agent')[1] or ''
  restore_long_logs(ref)
  local logs = {}
  for _, turn in ipairs(long_logs(ref)) do logs[#logs + 1] = key('log', ref, turn) end
  in_pieces(logs, function(...) redis.call('UNLINK', ...) end)
  redis.call('UNLINK', key('logs', ref), key('longlogs', ref))
  redis.call('UNLINK', conversation, key('steps', ref), key('turns', ref), key('queue', ref), key('images', ref),
    key('variables', ref), key('pending', ref), key('heads', ref), key('old', ref),
    key('oldest', ref))
  redis.call('HSET', conversation, 'deleted', now())
  redis.call('EXPIRE', conversation, tombstone_s)
  redis.call('ZREM', leases, ref)
  redis.call('ZREM', partition .. ':expiring', ref)
  redis.pcall('ZREM', partition .. ':waiting', ref)
  remove_ready(agent, ref)
  redis.call('ZREM', key('owner', owner), ref)
  redis.pcall('ZREM', key('recent', owner), ref)
end

-- Return the state of the request that first used an Idempotency-Key, or nil for a new key. `idem` is a digest of owner and
-- key, `digest` of the whole request. A key whose turn lies in another partition is recorded without a turn.
local function find_request(idem, digest)
  local known = idem ~= '' and redis.call('GET', key('idem', idem))
  if not known then return nil end
  local ref, turn, created, asked = string.match(known, '^(.-)\n(.-)\n(.-)\n(.*)$')
  if not ref then damaged('idem') end
  if asked ~= digest then return {'reused'} end
  if ref == '' then return nil end
  if redis.call('HGET', key('conversation', ref), 'created') ~= created then return {'gone'} end
  return {'attached', ref, turn}
end

-- Return the fields of a conversation, and the lengths that are checked against its sealed head.
local function row(ref)
  local fields = redis.call('HMGET', key('conversation', ref), 'agent', 'record', 'head', 'created',
    'updated', 'turns', 'settings', 'ttl', 'expires', 'title')
  local first, running, waits = first_turn(ref), '', 0
  if first then
    local run = redis.call('HMGET', key('run', ref, first), 'started', 'waits')
    if run[1] then running = first end
    if run[2] then waits = 1 end
  end
  return {ref, fields, running, redis.call('LLEN', key('queue', ref)), redis.call('LLEN', key('turns', ref)),
    redis.call('LLEN', key('steps', ref)),
    redis.call('ZSCORE', key('owner', owner_of(ref)), ref) or '', waits}
end
