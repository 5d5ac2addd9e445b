-- Return for each agent how many conversations wait for a thread, and for how long the oldest has waited, in microseconds. The last
-- pair is that of the turns that wait for a person.
-- ARGV: ...agents
local found, at = {}, now()
for i, agent in ipairs(agents) do
  local first = redis.call('ZRANGE', key('ready', agent), 0, 0, 'WITHSCORES')
  found[i] = {redis.call('ZCARD', key('ready', agent)), first[1] and math.min(math.max(0, at - first[2]), at) or 0}
end
local ref = redis.call('ZRANGE', waiting, 0, 0)[1]
local turn = ref and redis.pcall('LINDEX', key('queue', ref), 0)
local since = type(turn) == 'string' and redis.pcall('HGET', key('run', ref, turn), 'waits_since')  -- neither may be damaged
since = type(since) == 'string' and parse_int(since)
found[#found + 1] = {redis.call('ZCARD', waiting), since and math.max(0, at - since) or 0}
return found
