-- Change between turns what a conversation's memory is: a new head, and terms (empty: as they are), take the place of those that
-- were read. `wanted` are numbers of things and the things: the pieces of variables as (name, tag), where `restores` says that
-- they are to be these and no others; indexes of steps of which the tag alone is to stay; names of images to be thrown away;
-- numbers of turns whose logs are deleted.
-- `turns` (empty: any) is how many there must be.
-- ARGV: ref read_head read_terms turns head terms restores ...wanted
local conversation, i = key('conversation', ref), 1
local found = redis.call('HMGET', conversation, 'agent', 'generation', 'head', 'terms', 'turns')
if not found[1] then check_missing(ref) return {'unknown'} end
local first = first_of(ref)
if first then return {'busy', first} end
if (found[3] or '') ~= read_head or (found[4] or '') ~= read_terms or (turns ~= '' and found[5] ~= turns) then
  return {'moved'}
end
check_logs(ref)
local function take() i = i + 1 return wanted[i - 1] end
local pieces, generation = {}, found[2] or damaged('conversation')
for _ = 1, tonumber(take()) do
  local name, tag = take(), take()
  pieces[name] = piece_of(ref, generation, name, tag)
  if not pieces[name] then return {'gone', name} end
end
if restores == '1' then
  if redis.call('HLEN', key('variables', ref, generation)) > MOST_PIECES then damaged('variables') end
  for _, name in ipairs(redis.call('HKEYS', key('variables', ref, generation))) do
    if not pieces[name] then put_piece(ref, generation, name, '') end
  end
  for name, blob in pairs(pieces) do put_piece(ref, generation, name, blob) end
end
local steps = key('steps', ref, generation)
for _ = 1, tonumber(take()) do
  local index = take()
  redis.call('LSET', steps, index, string.sub(redis.call('LINDEX', steps, index) or damaged('steps'), -16))
end
for _ = 1, tonumber(take()) do redis.call('HDEL', key('images', ref), take()) end
for _ = 1, tonumber(take()) do delete_log(ref, take()) end
redis.call('HSET', conversation, 'head', head)
if terms ~= '' then redis.call('HSET', conversation, 'terms', terms) end
redis.call('HSET', conversation, 'updated', now())
touch(ref)
return {'ok', row(ref)}
