-- Every write of a running turn. Writes of one claim are numbered from 1 on, the first entry of this call is number `serial`:
-- what was written already is a no-op, and what does not follow (something before it was lost on the way) is `behind`.
-- An entry is: key in the journal (or empty), result, length of the log before its events (or empty), index and sealed step
-- (or two empty strings), n and n (name, sealed attachment) pairs, k and k (name, sealed piece of variables, or empty for one
-- that is gone) pairs, m and m (name, sealed event) pairs.
-- A step or an event that does not follow on the stored ones is a gap; what came before it in the call was written.
-- Who writes is alive: the lease is extended.
-- ARGV: ref turn fence generation me lease_us serial ...entries
if not holds(ref, fence) then return {'lost'} end
redis.call('ZADD', leases, 'XX', now() + lease_us, ref)
local run, journal, steps = key('run', ref, turn), key('journal', ref, turn), key('steps', ref, generation)
local images, fresh_variables = key('images', ref), key('fresh', ref, generation)
local written, number, seqs, i = whole(redis.call('HGET', run, 'written') or '0'), tonumber(serial), {}, 1
if not written then damaged('run') end
if number > written + 1 then return {'behind'} end
local function take() i = i + 1 return entries[i - 1] end
while i <= #entries do
  local name, result, at, index, step = take(), take(), take(), take(), take()
  local fresh = number > written
  if fresh then
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
    if fresh then redis.call('HSETNX', images, hash, image) end
  end
  for _ = 1, tonumber(take()) do
    local piece, blob = take(), take()
    if fresh then redis.call('HSET', fresh_variables, piece, blob) end
  end
  for _ = 1, tonumber(take()) do
    local event, blob = take(), take()
    seqs[#seqs + 1] = fresh and append(ref, turn, event, blob, blob, me) or 0
  end
  number = number + 1
end
if number - 1 > written then redis.call('HSET', run, 'written', number - 1) end
return {'ok', seqs}
