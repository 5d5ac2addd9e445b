-- Append values to a staged key of a conversation that is imported. `at` is the number of values before them.
-- ARGV: staged kind at ...values
local staged_key = key('staged', staged, kind)
if kind ~= 'turns' and kind ~= 'steps' then
  redis.call('HSET', staged_key, unpack(values))
elseif redis.call('LLEN', staged_key) == tonumber(at) then  -- else the reply was lost
  redis.call('RPUSH', staged_key, unpack(values))
end
redis.call('EXPIRE', staged_key, STAGED_S)
return {'ok'}
