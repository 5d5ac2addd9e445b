-- Replace the head, and the settings unless they are empty, of a conversation without open turns, if both are still as read.
-- `wanted` holds counted groups: (name, tag) of chunks, which become the variables if `restores` is 1; indexes of steps to
-- reduce to their tags; names of images to keep if there are such steps; numbers of turns whose logs are deleted.
-- `turns` is the number of turns that the conversation must have (empty: any).
-- ARGV: ref read_head read_settings turns head settings restores ...wanted
local conversation, i = key('conversation', ref), 1
local found = redis.call('HMGET', conversation, 'agent', 'generation', 'head', 'settings', 'turns')
if not found[1] then check_not_damaged(ref) return {'unknown'} end
local first = first_turn(ref)
if first then return {'busy', first, waits_until(ref, first) and 1 or 0} end
if (found[3] or '') ~= read_head or (found[4] or '') ~= read_settings or (turns ~= '' and found[5] ~= turns) then
  return {'moved'}
end
check_logs(ref)
local function take() i = i + 1 return wanted[i - 1] end
local chunks, generation = {}, found[2] or damaged('conversation')
for _ = 1, tonumber(take()) do
  local name, tag = take(), take()
  chunks[name] = find_chunk(ref, generation, name, tag)
  if not chunks[name] then return {'gone', name} end
end
if restores == '1' then
  if redis.call('HLEN', key('variables', ref, generation)) > MAX_CHUNKS then damaged('variables') end
  for _, name in ipairs(redis.call('HKEYS', key('variables', ref, generation))) do
    if not chunks[name] then put_chunk(ref, generation, name, '') end
  end
  for name, blob in pairs(chunks) do put_chunk(ref, generation, name, blob) end
end
local steps = key('steps', ref, generation)
local gone, is_gone, kept = tonumber(take()), {}, {}
for _ = 1, gone do is_gone[tonumber(take())] = true end
if gone <= 100 then
  for index in pairs(is_gone) do
    redis.call('LSET', steps, index, string.sub(redis.call('LINDEX', steps, index) or damaged('steps'), -16))
  end
else  -- to find many by their indexes takes five times as long as a new list
  local rebuilt = key('rebuilt', ref)  -- never seen outside of this script
  redis.call('UNLINK', rebuilt)
  for start = 0, redis.call('LLEN', steps) - 1, 100 do
    local values = redis.call('LRANGE', steps, start, start + 99)
    for place, value in ipairs(values) do
      if is_gone[start + place - 1] then
        values[place] = string.sub(value, -16)
        gone = gone - 1
      end
    end
    redis.call('RPUSH', rebuilt, unpack(values))
  end
  if gone ~= 0 then
    redis.call('UNLINK', rebuilt)
    damaged('steps')
  end
  redis.call('UNLINK', steps)
  redis.call('RENAME', rebuilt, steps)
end
for _ = 1, tonumber(take()) do kept[take()] = true end
if next(is_gone) then
  for _, name in ipairs(redis.call('HKEYS', key('images', ref))) do
    if not kept[name] then redis.call('HDEL', key('images', ref), name) end
  end
end
for _ = 1, tonumber(take()) do delete_log(ref, take()) end
redis.call('HSET', conversation, 'head', head)
if settings ~= '' then redis.call('HSET', conversation, 'settings', settings) end
local at = now()
redis.call('HSET', conversation, 'updated', at)
touch(ref, at)
refresh_ttl(ref)
return {'ok', row(ref)}
