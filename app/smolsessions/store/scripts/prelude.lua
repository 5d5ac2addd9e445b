-- What every script shares. All keys carry the partition's tag (`{p000}`), so a script stays on one node of a cluster.
-- Times are microseconds of the server's clock.

local function key(kind, ...)
  return partition .. ':' .. kind .. ':' .. table.concat({...}, ':')
end

local leases = partition .. ':leases'
local MOST_QUEUED = 10000  -- entries of one queue that a script looks at
local MOST_PIECES = 20000  -- of the variables of one conversation
local MOST_WATCHING = 1000  -- replicas that are told of one turn
local MOST_LONG_LOGS = 100000  -- of one conversation
local LARGEST_COUNTED = 100  -- more attempts than this cannot count against one turn

-- Refuse a conversation whose keys are not as the service writes them: `seal_broken` for it alone.
local function damaged(what)
  error({err = 'DAMAGED ' .. what})
end

-- Whole numbers are the only ones that the store keeps; nil for anything else.
local function whole(text)
  return text and #text <= 16 and string.match(text, '^%d+$') and tonumber(text) or nil
end

-- Tell an id that was never used, or was deleted, from a conversation that lost its fields.
local function check_missing(ref)
  local conversation = key('conversation', ref)
  if redis.call('EXISTS', conversation) == 1 and redis.call('HEXISTS', conversation, 'deleted') == 0 then
    damaged('conversation')
  end
end

-- The number of the last turn. It equals the number of records, so a loop over turns is bounded by them.
local function turns_of(ref)
  local turns, stored = redis.call('HGET', key('conversation', ref), 'turns'), redis.call('LLEN', key('turns', ref))
  if turns ~= string.format('%d', stored) then damaged('turns') end
  return stored
end

-- The number of the first turn that runs or waits, as text; nil: none does.
local function first_of(ref)
  local first = redis.call('LINDEX', key('queue', ref), 0)
  if first and not whole(first) then damaged('queue') end
  return first or nil
end

-- Delete a key of another type. True: it was one, and `deleted` (if given) names it.
local function delete_unless(expected, name, deleted)
  local found = redis.call('TYPE', name).ok
  if found == expected or found == 'none' then return false end
  redis.call('DEL', name)
  if deleted then deleted[#deleted + 1] = name end
  return true
end

-- Rebuild `longlogs` of another type: it holds the turns whose logs have no time to live.
local function restore_long_logs(ref)
  if not delete_unless('set', key('longlogs', ref)) then return end
  local turns = redis.pcall('LLEN', key('turns', ref))
  for turn = 1, type(turns) == 'number' and math.min(turns, MOST_LONG_LOGS) or 0 do
    if redis.call('TTL', key('log', ref, turn)) == -1 then redis.call('SADD', key('longlogs', ref), turn) end
  end
end

-- Delete everything that keeps a turn from being claimed or ended: keys of another type, counters that are no numbers or too large.
local function clear_damage(ref, turn)
  local generation = redis.call('HGET', key('conversation', ref), 'generation') or 0
  local types = {
    list = {key('turns', ref), key('queue', ref), key('oldest', ref), key('steps', ref, generation), key('log', ref, turn)},
    hash = {key('images', ref), key('moments', ref), key('old', ref), key('variables', ref, generation),
      key('fresh', ref, generation), key('run', ref, turn), key('journal', ref, turn), key('logs', ref)},
    set = {key('watch', ref, turn)},
  }
  for expected, names in pairs(types) do
    for _, name in ipairs(names) do delete_unless(expected, name) end
  end
  restore_long_logs(ref)
  for _, name in ipairs({'attempts', 'counted', 'effects', 'effects_at', 'written', 'claimed', 'started'}) do
    local value = redis.call('HGET', key('run', ref, turn), name)
    local number = value and whole(value)
    if value and (not number or (name == 'counted' and number > LARGEST_COUNTED)) then
      redis.call('HDEL', key('run', ref, turn), name)
    end
  end
  if not whole(redis.call('HGET', key('conversation', ref), 'fences')) then
    redis.call('HDEL', key('conversation', ref), 'fences')
  end
end

local function now()
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2]
end

-- Scores are unique within an owner's list, so that a page's cursor is a score.
local function create(owner, ref, agent, record)
  local list, at = key('owner', owner), now()
  for _ = 1, 1000 do
    if redis.call('ZCOUNT', list, at, at) == 0 then break end
    at = at + 1
  end
  redis.call('ZADD', list, at, ref)
  redis.call('HSET', key('conversation', ref), 'agent', agent, 'record', record, 'created', at, 'updated', at,
    'turns', 0, 'generation', 0)
end

-- The one way into a turn's log. Replicas with readers are told, but for the one that is writing: it has the reply.
-- A final event has no blob of its own: it is the turn's record, which is told instead.
local function tell(ref, turn, seq, name, told, me)
  local watch, replica = key('watch', ref, turn), partition .. ':replica:'
  for _, channel in ipairs(redis.call('SRANDMEMBER', watch, MOST_WATCHING)) do
    if channel ~= me and string.sub(channel, 1, #replica) == replica then
      redis.call('SPUBLISH', channel, table.concat({ref, turn, seq, name, told}, '\n'))
    end
  end
end

local function append(ref, turn, name, blob, told, me)
  local seq = redis.call('RPUSH', key('log', ref, turn), name .. '\n' .. blob)
  tell(ref, turn, seq, name, told, me)
  return seq
end

local function holds(ref, fence)
  return redis.call('HGET', key('conversation', ref), 'fence') == fence
end

-- The ready set of an agent: `ready` holds its conversations by the time since when they wait, `share` those of one owner.
-- `owners` is the line of their owners, by the time since when each waits for its turn.
local function owner_of(ref)
  return string.match(ref, '^(.*)/') or ''
end

local function enter(agent, ref, at)
  local owner = owner_of(ref)
  redis.call('ZADD', key('ready', agent), 'NX', at, ref)
  redis.call('ZADD', key('share', agent, owner), 'NX', at, ref)
  redis.call('ZADD', key('owners', agent), 'NX', at, owner)
end

local function leave(agent, ref)
  local owner = owner_of(ref)
  redis.call('ZREM', key('ready', agent), ref)
  redis.call('ZREM', key('share', agent, owner), ref)
  if redis.call('EXISTS', key('share', agent, owner)) == 0 then redis.call('ZREM', key('owners', agent), owner) end
end

local function make_ready(ref, wake)
  local agent = redis.call('HGET', key('conversation', ref), 'agent') or damaged('conversation')
  enter(agent, ref, now())
  if wake ~= '' then redis.call('SPUBLISH', wake, owner_of(ref)) end
end

-- Logs that last as long as their conversation (`log_ttl_s` is 0): `logs` holds the packed ones by turn. A log that is not
-- packed stays a list of its own, and `longlogs` holds its turn.
local function check_logs(ref)
  redis.call('HLEN', key('logs', ref))
  redis.call('SCARD', key('longlogs', ref))
end

local function long_logs(ref)
  return redis.call('SRANDMEMBER', key('longlogs', ref), MOST_LONG_LOGS)
end

local function delete_log(ref, turn)
  redis.call('HDEL', key('logs', ref), turn)
  redis.call('SREM', key('longlogs', ref), turn)
  redis.call('UNLINK', key('log', ref, turn))
end

-- Delete the working keys of a turn that is over. Its log stays for `log_ttl_s`.
local function close(ref, turn, log_ttl_s)
  redis.call('DEL', key('run', ref, turn), key('journal', ref, turn), key('watch', ref, turn))
  if log_ttl_s ~= '0' then
    redis.call('EXPIRE', key('log', ref, turn), log_ttl_s)
  elseif redis.call('EXISTS', key('log', ref, turn)) == 1 then
    redis.call('SADD', key('longlogs', ref), turn)
  end
end

-- Ask a turn to stop, for `1` (nothing more), `interrupt:N` or `rollback:N` (turn N wants so): a stronger wish stays. Its
-- worker is told the wish that counts, and finds it also when it renews its lease or claims the turn again.
local function stop(ref, turn, why)
  local strength, run = {interrupt = 1, rollback = 2}, key('run', ref, turn)
  local wish = redis.call('HGET', run, 'cancel')
  if not wish or (strength[string.match(why, '^%a+') or ''] or 0) > (strength[string.match(wish, '^%a+') or ''] or 0) then
    redis.call('HSET', run, 'cancel', why)
    wish = why
  end
  local worker = string.match(redis.call('HGET', key('conversation', ref), 'fence') or '', ':(.*):')
  if worker then redis.call('SPUBLISH', partition .. ':stop:' .. worker, ref .. '\n' .. turn .. '\n' .. wish) end
end

-- A conversation with a time to live is used: it begins anew.
local function touch(ref)
  local ttl = whole(redis.call('HGET', key('conversation', ref), 'ttl'))
  if not ttl then return end
  local expires = string.format('%.0f', now() + ttl)
  redis.call('HSET', key('conversation', ref), 'expires', expires)
  redis.call('ZADD', partition .. ':expiring', expires, ref)
end

-- Give a conversation a time to live, in microseconds, or none (empty).
local function set_ttl(ref, ttl)
  if ttl ~= '' then
    redis.call('HSET', key('conversation', ref), 'ttl', ttl)
    touch(ref)
  else
    redis.call('HDEL', key('conversation', ref), 'ttl', 'expires')
    redis.call('ZREM', partition .. ':expiring', ref)
  end
end

-- What a conversation was after a turn: its head as it is now (empty: it has none yet). Steps are only added, so the head
-- tells which they were.
local function note_moment(ref, turn)
  redis.call('HSET', key('moments', ref), turn, redis.call('HGET', key('conversation', ref), 'head') or '')
end

-- Put a piece of the variables (empty: take it away; the one without a name is the sealed list of all). What was there is
-- kept by its tag, for going back: the newest 64 MiB of a conversation.
local function put_piece(ref, generation, name, blob)
  local variables = key('variables', ref, generation)
  local before = redis.call('HGET', variables, name)
  if blob == '' then redis.call('HDEL', variables, name) else redis.call('HSET', variables, name, blob) end
  if not before or before == blob then return end
  local old, order, conversation = key('old', ref), key('oldest', ref), key('conversation', ref)
  local tag = string.sub(before, -16)
  if redis.call('HSETNX', old, tag, before) == 0 then return end
  redis.call('RPUSH', order, tag)
  local size = (whole(redis.call('HGET', conversation, 'old_bytes')) or 0) + #before
  while size > 67108864 do
    local oldest = redis.call('LPOP', order)
    if not oldest then break end
    size = size - redis.call('HSTRLEN', old, oldest)
    redis.call('HDEL', old, oldest)
  end
  redis.call('HSET', conversation, 'old_bytes', string.format('%.0f', math.max(0, size)))
end

-- A piece by its name and tag: as it is, or as it was before; nothing where it is not kept any more.
local function piece_of(ref, generation, name, tag)
  local blob = redis.call('HGET', key('variables', ref, generation), name)
  if blob and string.sub(blob, -16) == tag then return blob end
  return redis.call('HGET', key('old', ref), tag)
end

-- All that a conversation has. A tombstone keeps the id for a while: numbers begin again with a new conversation.
local function take_away(ref, owner, tombstone_s)
  local conversation = key('conversation', ref)
  local found = redis.pcall('HMGET', conversation, 'agent', 'generation')
  local agent, generation = found[1] or '', found[2] or 0
  restore_long_logs(ref)
  for _, turn in ipairs(long_logs(ref)) do redis.call('UNLINK', key('log', ref, turn)) end
  redis.call('UNLINK', key('logs', ref), key('longlogs', ref))
  redis.call('DEL', conversation, key('steps', ref, generation), key('turns', ref), key('queue', ref), key('images', ref),
    key('variables', ref, generation), key('fresh', ref, generation), key('moments', ref), key('old', ref),
    key('oldest', ref))
  redis.call('HSET', conversation, 'deleted', now())
  redis.call('EXPIRE', conversation, tombstone_s)
  redis.call('ZREM', leases, ref)
  redis.call('ZREM', partition .. ':expiring', ref)
  leave(agent, ref)
  redis.call('ZREM', key('owner', owner), ref)
end

-- What became of the request that was first sent with an Idempotency-Key (nothing: it is new). `idem` stands for owner and
-- key, `digest` for all that was asked. Of one whose turn lies at another partition there is but word.
local function recall(idem, digest)
  local known = idem ~= '' and redis.call('GET', key('idem', idem))
  if not known then return nil end
  local ref, turn, created, asked = string.match(known, '^(.-)\n(.-)\n(.-)\n(.*)$')
  if not ref then damaged('idem') end
  if asked ~= digest then return {'reused'} end
  if ref == '' then return nil end
  if redis.call('HGET', key('conversation', ref), 'created') ~= created then return {'gone'} end
  return {'attached', ref, turn}
end

-- The fields that lists and pages show of a conversation, and the lengths that its sealed head is compared with.
local function row(ref)
  local fields = redis.call('HMGET', key('conversation', ref), 'agent', 'record', 'head', 'generation', 'created',
    'updated', 'turns', 'terms', 'ttl', 'expires')
  local first, running = first_of(ref), ''
  if first and redis.call('HEXISTS', key('run', ref, first), 'started') == 1 then running = first end
  return {ref, fields, running, redis.call('LLEN', key('queue', ref)), redis.call('LLEN', key('turns', ref)),
    redis.call('LLEN', key('steps', ref, fields[4] or '')),
    redis.call('ZSCORE', key('owner', owner_of(ref)), ref) or ''}
end
