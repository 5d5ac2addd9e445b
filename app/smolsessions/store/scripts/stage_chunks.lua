-- Copy chunks of a conversation's variables, current or old, to a staged key. `wanted` holds (name, tag).
-- ARGV: ref generation staged ...wanted
local staged_key = key('staged', staged, 'variables')
for i = 1, #wanted, 2 do
  local chunk = find_chunk(ref, generation, wanted[i], wanted[i + 1])
  if not chunk then return 'gone' end
  redis.call('HSET', staged_key, wanted[i], chunk)
end
redis.call('EXPIRE', staged_key, STAGED_S)
return 'ok'
