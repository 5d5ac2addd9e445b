-- Create a conversation of staged keys, all sealed for it: `turns` turn records, `steps` steps, images, chunks of variables, and
-- heads by turn.
-- ARGV: owner ref staged agent record settings ttl head turns steps
if redis.call('EXISTS', key('conversation', ref)) == 1 then return {'exists'} end
if redis.call('LLEN', key('staged', staged, 'turns')) ~= tonumber(turns)
  or redis.call('LLEN', key('staged', staged, 'steps')) ~= tonumber(steps) then
  return {'expired'}
end
unstage(staged, {'turns', 'images', 'heads', 'steps', 'variables'}, ref)
create(owner, ref, agent, record)
redis.call('HSET', key('conversation', ref), 'turns', turns)
if head ~= '' then redis.call('HSET', key('conversation', ref), 'head', head) end
if turns ~= '0' then keep_head(ref, turns) end
if settings ~= '' then redis.call('HSET', key('conversation', ref), 'settings', settings) end
set_ttl(ref, ttl)
return {'ok', row(ref)}
