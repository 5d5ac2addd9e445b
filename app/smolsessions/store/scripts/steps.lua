-- Return steps from index `first` to `last` with agent, head, settings, number of steps, number of open turns, record.
-- If `last` is less than `first`, the newest step comes first. Once they are larger than `max_bytes`, the rest is left out.
-- ARGV: ref first last max_bytes
local AT_ONCE = 5  -- each may have 16 MiB
local head = redis.call('HMGET', key('conversation', ref), 'agent', 'head', 'settings', 'record')
if not head[1] then check_not_damaged(ref) return false end
local steps = key('steps', ref)
local stored, values, bytes = redis.call('LLEN', steps), {}, 0
first, last, max_bytes = tonumber(first), tonumber(last), tonumber(max_bytes)
local is_falling = last < first
local at = is_falling and math.min(first, stored - 1) or first
while at >= 0 and at < stored and bytes <= max_bytes and (is_falling and at >= last or not is_falling and at <= last) do
  local low = is_falling and math.max(at - AT_ONCE + 1, last) or at
  local high = is_falling and at or math.min(at + AT_ONCE - 1, last)
  local found = redis.call('LRANGE', steps, low, high)
  for i = 1, #found do
    local value = found[is_falling and #found + 1 - i or i]
    values[#values + 1] = value
    bytes = bytes + #value
  end
  at = is_falling and low - 1 or high + 1
end
return {head[1], head[2] or '', values, head[3] or '', stored, redis.call('LLEN', key('queue', ref)), head[4] or ''}
