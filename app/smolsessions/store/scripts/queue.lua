-- Return for each agent how many conversations wait for a thread, and for how long the oldest has waited, in microseconds.
-- ARGV: ...agents
local found, at = {}, now()
for i, agent in ipairs(agents) do
  local first = redis.call('ZRANGE', key('ready', agent), 0, 0, 'WITHSCORES')
  found[i] = {redis.call('ZCARD', key('ready', agent)), first[1] and math.min(math.max(0, at - first[2]), at) or 0}
end
return found
