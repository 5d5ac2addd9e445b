-- Replace records of one key: `changes` are place, value as read, and new value. A value that has changed since stays.
-- The time to live of the key stays, too. Returns the number of replaced records.
-- ARGV: server_key ...changes
local kind, done = redis.call('TYPE', server_key).ok, 0
for i = 1, #changes, 3 do
  local place, read, new = changes[i], changes[i + 1], changes[i + 2]
  if kind == 'list' and redis.call('LINDEX', server_key, place) == read then
    redis.call('LSET', server_key, place, new)
    done = done + 1
  elseif kind == 'hash' and redis.call('HGET', server_key, place) == read then
    redis.call('HSET', server_key, place, new)
    done = done + 1
  end
end
return done
