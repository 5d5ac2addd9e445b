-- Replace the head, and the settings unless they are empty, of a conversation without open turns, if both are still as read.
-- - The staged `chunks` (their number, or empty) replace the variables, and the staged `steps` (likewise) the steps.
-- - With `steps`, `wanted` holds the number of images to keep, their names, and numbers of turns whose logs are deleted.
-- - `turns` is the number of turns that the conversation must have (empty: any).
-- ARGV: ref read_head read_settings turns head settings staged chunks steps ...wanted
local conversation = key('conversation', ref)
local found = redis.call('HMGET', conversation, 'agent', 'head', 'settings', 'turns')
if not found[1] then check_not_damaged(ref) return {'unknown'} end
local first = first_turn(ref)
if first then return {'busy', first, waits_until(ref, first) and 1 or 0} end
if (found[2] or '') ~= read_head or (found[3] or '') ~= read_settings or (turns ~= '' and found[4] ~= turns) then
  return {'moved'}
end
check_logs(ref)
local kinds = {}
if steps ~= '' then
  if redis.call('LLEN', key('staged', staged, 'steps')) ~= tonumber(steps) then return {'moved'} end
  if redis.call('LLEN', key('steps', ref)) ~= tonumber(steps) then damaged('steps') end
  kinds[#kinds + 1] = 'steps'
end
if chunks ~= '' then
  if redis.call('HLEN', key('staged', staged, 'variables')) ~= tonumber(chunks) then return {'moved'} end
  kinds[#kinds + 1] = 'variables'
end
unstage(staged, kinds, ref)
if steps ~= '' then
  local number_kept, kept, gone, logs, turns_gone = tonumber(wanted[1]), {}, {}, {}, {}
  for i = 2, number_kept + 1 do kept[wanted[i]] = true end
  for _, name in ipairs(redis.call('HKEYS', key('images', ref))) do
    if not kept[name] then gone[#gone + 1] = name end
  end
  for i = number_kept + 2, #wanted do
    turns_gone[#turns_gone + 1] = wanted[i]
    logs[#logs + 1] = key('log', ref, wanted[i])
  end
  in_pieces(gone, function(...) redis.call('HDEL', key('images', ref), ...) end)
  in_pieces(turns_gone, function(...)
    redis.call('HDEL', key('logs', ref), ...)
    redis.call('SREM', key('longlogs', ref), ...)
  end)
  in_pieces(logs, function(...) redis.call('UNLINK', ...) end)
end
redis.call('HSET', conversation, 'head', head)
if settings ~= '' then redis.call('HSET', conversation, 'settings', settings) end
local at = now()
redis.call('HSET', conversation, 'updated', at)
touch(ref, at)
refresh_ttl(ref)
return {'ok', row(ref)}
