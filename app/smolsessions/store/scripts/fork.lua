-- Create a conversation of staged copies of another one's first `count` steps and `turn` turns, and of `chunks` chunks of variables,
-- with a head and settings of its own.
-- ARGV: owner ref read_head staged to agent record settings head count turn chunks ttl
local from = redis.call('HMGET', key('conversation', ref), 'agent', 'head')
if not from[1] then check_not_damaged(ref) return {'unknown'} end
local first = first_turn(ref)
if first then return {'busy', first, waits_until(ref, first) and 1 or 0} end
if (from[2] or '') ~= read_head then return {'moved'} end
if redis.call('EXISTS', key('conversation', to)) == 1 then return {'exists'} end
local last = count_turns(ref)
check_logs(ref)
local function staged_length(kind) return redis.call('LLEN', key('staged', staged, kind)) end
if staged_length('turns') ~= tonumber(turn) or staged_length('steps') ~= tonumber(count)
  or redis.call('HLEN', key('staged', staged, 'variables')) ~= tonumber(chunks) then
  return {'expired'}
end
unstage(staged, {'turns', 'images', 'heads', 'old', 'oldest', 'logs', 'steps', 'variables'}, to)
for _, number in ipairs(long_logs(ref)) do
  if (parse_int(number) or last + 1) <= tonumber(turn) then
    redis.call('COPY', key('log', ref, number), key('log', to, number), 'REPLACE')
    redis.call('SADD', key('longlogs', to), number)
  end
end
create(owner, to, agent, record)
redis.call('HSET', key('conversation', to), 'turns', turn, 'settings', settings, 'old_bytes',
  parse_int(redis.call('HGET', key('conversation', ref), 'old_bytes')) or 0)
if head ~= '' then redis.call('HSET', key('conversation', to), 'head', head) end
if redis.call('EXISTS', key('heads', to)) == 0 then keep_head(to, turn) end  -- the origin has none
set_ttl(to, ttl)
return {'ok', row(to)}
