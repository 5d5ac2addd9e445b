-- Create a conversation from an export. `given` holds counted groups: turn records, steps, (name, image), (name, chunk of
-- variables), (turn, head after it). All are sealed for this conversation.
-- ARGV: owner ref agent record terms ttl head ...given
if redis.call('EXISTS', key('conversation', ref)) == 1 then return {'exists'} end
local i = 1
local function take() i = i + 1 return given[i - 1] end
local turns = tonumber(take())
for _ = 1, turns do redis.call('RPUSH', key('turns', ref), take()) end
for _ = 1, tonumber(take()) do redis.call('RPUSH', key('steps', ref, 0), take()) end
for _, hash in ipairs({key('images', ref), key('variables', ref, 0), key('heads', ref)}) do
  for _ = 1, tonumber(take()) do redis.call('HSET', hash, take(), take()) end
end
create(owner, ref, agent, record)
redis.call('HSET', key('conversation', ref), 'turns', turns)
if head ~= '' then redis.call('HSET', key('conversation', ref), 'head', head) end
if turns > 0 then keep_head(ref, turns) end
if terms ~= '' then redis.call('HSET', key('conversation', ref), 'terms', terms) end
set_ttl(ref, ttl)
return {'ok', row(ref)}
