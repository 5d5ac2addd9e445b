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
local written, number, seqs, i = parse_int(redis.call('HGET', run, 'written') or '0'), tonumber(serial), {}, 1
if not written then damaged('run') end
if number > written + 1 then return {'behind'} end
local function take() i = i + 1 return entries[i - 1] end
while i <= #entries do
  local name, result, at, index, step = take(), take(), take(), take(), take()
  local is_new = number > written
  if is_new then
    local length = index ~= '' and redis.call('LLEN', steps)
    if (at ~= '' and redis.call('LLEN', key('log', ref, turn)) < tonumber(at)) or (length and length < tonumber(index)) then
      redis.call('HSET', run, 'written', number - 1)
      return {'gap'}
    end
    if length == tonumber(index) then redis.call('RPUSH', steps, step) end
    if name ~= '' and redis.call('HSETNX', journal, name, result) == 1 and result ~= '' then
      redis.call('HINCRBY', run, 'effects', 1)
    end
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
if number - 1 > written then redis.call('HSET', run, 'written', number - 1) end
return {'ok', seqs}
