-- Every write of a running turn. Each entry has a key that a replay makes again: a key that is there is a no-op.
-- An entry is: key, result, length of the log before its events (or empty), index and sealed step (or two empty strings),
-- n and n (name, sealed attachment) pairs, k and k (name, sealed piece of variables, or empty for one that is gone) pairs,
-- m and m (name, sealed event) pairs.
-- A step or an event that does not follow on the stored ones is a gap; what came before it in the call was written.
-- ARGV: ref turn fence generation me ...entries
if not holds(ref, fence) then return {'lost'} end
local journal, steps, images = key('journal', ref, turn), key('steps', ref, generation), key('images', ref)
local fresh_variables = key('fresh', ref, generation)
local seqs, i = {}, 1
local function take() i = i + 1 return entries[i - 1] end
while i <= #entries do
  local name, result, at, index, step = take(), take(), take(), take(), take()
  local fresh = redis.call('HSETNX', journal, name, result) == 1
  if fresh and at ~= '' and redis.call('LLEN', key('log', ref, turn)) < tonumber(at) then
    redis.call('HDEL', journal, name)
    return {'gap'}
  end
  if fresh and index ~= '' then
    local length = redis.call('LLEN', steps)
    if length == tonumber(index) then
      redis.call('RPUSH', steps, step)
    elseif length < tonumber(index) then
      redis.call('HDEL', journal, name)
      return {'gap'}
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
end
return {'ok', seqs}
