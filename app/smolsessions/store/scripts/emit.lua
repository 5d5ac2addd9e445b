-- Append the writes of a running turn. The writes of one claim are numbered from 1. The first entry has number `serial`.
-- A repeated write changes nothing. A write whose predecessor is missing is refused as `behind`.
-- An entry is: key in the journal (or empty), result, length of the log before its events (or empty), index and sealed step (or
-- two empty strings), then counted groups: (name, sealed image), (name, sealed chunk of variables or empty if it was deleted),
-- (name, sealed event).
-- A step or event after a gap is refused as `gap`. The entries before it are written.
-- The lease is renewed.
-- ARGV: ref turn fence generation own_channel lease_us serial ...entries
if not holds_lease(ref, fence) then return {'lost'} end
redis.call('ZADD', leases, 'XX', now() + lease_us, ref)
local run, journal, steps = key('run', ref, turn), key('journal', ref, turn), key('steps', ref, generation)
local images, pending = key('images', ref), key('pending', ref, generation)
local known = redis.call('HMGET', run, 'written', 'effects')
local written, effects = parse_int(known[1] or '0'), parse_int(known[2] or '0')
local number, length, seqs, i = tonumber(serial), nil, {}, 1
if not (written and effects) then damaged('run') end
if number > written + 1 then return {'behind'} end
local function take() i = i + 1 return entries[i - 1] end
local function save()
  if number - 1 > written then redis.call('HSET', run, 'written', number - 1, 'effects', effects) end
end
while i <= #entries do
  local name, result, at, index, step = take(), take(), take(), take(), take()
  local is_new = number > written
  if is_new then
    if index ~= '' then length = length or redis.call('LLEN', steps) end
    if (at ~= '' and redis.call('LLEN', key('log', ref, turn)) < tonumber(at)) or (index ~= '' and length < tonumber(index)) then
      save()
      return {'gap'}
    end
    if index ~= '' and length == tonumber(index) then length = redis.call('RPUSH', steps, step) end
    if name ~= '' and redis.call('HSETNX', journal, name, result) == 1 and result ~= '' then effects = effects + 1 end
  end
  for _ = 1, tonumber(take()) do
    local hash, image = take(), take()
    if is_new then redis.call('HSETNX', images, hash, image) end
  end
  for _ = 1, tonumber(take()) do
    local piece, blob = take(), take()
    if is_new then redis.call('HSET', pending, piece, blob) end
  end
  for _ = 1, tonumber(take()) do
    local event, blob = take(), take()
    seqs[#seqs + 1] = is_new and append(ref, turn, event, blob, blob, own_channel) or 0
  end
  number = number + 1
end
save()
return {'ok', seqs}
