-- Create a conversation from an export. `given` holds counted groups: turn records, steps, (name, image), (name, chunk of
-- variables), (turn, head after it). All are sealed for this conversation.
-- ARGV: owner ref agent record terms ttl head ...given
local AT_ONCE = 1000 -- an even number: `unpack` has a bound
if redis.call('EXISTS', key('conversation', ref)) == 1 then return {'exists'} end
local i = 1
local function take() i = i + 1 return given[i - 1] end
local function put(command, name, count)
  local stop = i + count
  while i < stop do
    local last = math.min(i + AT_ONCE, stop) - 1
    redis.call(command, name, unpack(given, i, last))
    i = last + 1
  end
end
local turns = tonumber(take())
put('RPUSH', key('turns', ref), turns)
put('RPUSH', key('steps', ref, 0), tonumber(take()))
for _, hash in ipairs({key('images', ref), key('variables', ref, 0), key('heads', ref)}) do
  put('HSET', hash, 2 * tonumber(take()))
end
create(owner, ref, agent, record)
redis.call('HSET', key('conversation', ref), 'turns', turns)
if head ~= '' then redis.call('HSET', key('conversation', ref), 'head', head) end
if turns > 0 then keep_head(ref, turns) end
if terms ~= '' then redis.call('HSET', key('conversation', ref), 'terms', terms) end
set_ttl(ref, ttl)
return {'ok', row(ref)}
