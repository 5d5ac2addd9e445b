-- Create a conversation of staged copies of the first `count` steps and `turn` turns of another one, with a head and settings of its
-- own. `wanted` are the chunks of its variables as (name, tag).
-- ARGV: owner ref read_head staged to agent record settings head count turn ttl ...wanted
local from = redis.call('HMGET', key('conversation', ref), 'agent', 'generation', 'head')
if not from[1] then check_not_damaged(ref) return {'unknown'} end
local first = first_turn(ref)
if first then return {'busy', first, waits_until(ref, first) and 1 or 0} end
if (from[3] or '') ~= read_head then return {'moved'} end
if redis.call('EXISTS', key('conversation', to)) == 1 then return {'exists'} end
local generation, chunks = from[2] or damaged('conversation'), {}
local last = count_turns(ref)
check_logs(ref)
for i = 1, #wanted, 2 do
  chunks[i] = find_chunk(ref, generation, wanted[i], wanted[i + 1])
  if not chunks[i] then return {'gone', wanted[i]} end
end
local function staged_length(kind) return redis.call('LLEN', key('staged', staged, kind)) end
if staged_length('turns') ~= tonumber(turn) or staged_length('steps') ~= tonumber(count) then return {'expired'} end
unstage(staged, {turns = '', images = '', heads = '', old = '', oldest = '', logs = '', steps = generation}, to)
for _, number in ipairs(long_logs(ref)) do
  if (parse_int(number) or last + 1) <= tonumber(turn) then
    redis.call('COPY', key('log', ref, number), key('log', to, number), 'REPLACE')
    redis.call('SADD', key('longlogs', to), number)
  end
end
for i = 1, #wanted, 2 do redis.call('HSET', key('variables', to, generation), wanted[i], chunks[i]) end
create(owner, to, agent, record)
redis.call('HSET', key('conversation', to), 'turns', turn, 'generation', generation, 'settings', settings, 'old_bytes',
  parse_int(redis.call('HGET', key('conversation', ref), 'old_bytes')) or 0)
if head ~= '' then redis.call('HSET', key('conversation', to), 'head', head) end
if redis.call('EXISTS', key('heads', to)) == 0 then keep_head(to, turn) end  -- the origin has none
set_ttl(to, ttl)
return {'ok', row(to)}
