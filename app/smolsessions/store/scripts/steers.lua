-- Return the turns whose messages are to join a running turn, the oldest first: number, sealed record and sealed input of each, and 1
-- if more are left. The first comes in any case, more while all have less than `most_bytes`. From now on a cancel stops such a turn
-- only if its message does not join. Those in `drop` do not join: they stay queued as turns of their own.
-- ARGV: ref turn fence most_bytes log_ttl_s drop
if not holds_lease(ref, fence) then return {'lost'} end
local run, found, open, bytes, more = key('run', ref, turn), {}, {}, 0, 0
for number in string.gmatch(redis.call('HGET', run, 'steers') or '', '%d+') do
  local own = key('run', ref, number)
  local is_dropped = string.find(drop .. ' ', ' ' .. number .. ' ', 1, true)
  if is_dropped then redis.call('HDEL', own, 'taken') end
  local input, started = unpack(redis.call('HMGET', own, 'input', 'started'))
  local record = input and not (started or is_dropped) and redis.call('LINDEX', key('turns', ref), number - 1)
  if record then
    open[#open + 1] = number
    bytes = bytes + #record + #input
    if #found > 0 and bytes > tonumber(most_bytes) then
      more = 1
    else
      redis.call('HSET', own, 'taken', log_ttl_s)
      found[#found + 1] = {number, record, input}
    end
  end
end
if open[1] then redis.call('HSET', run, 'steers', table.concat(open, ' ')) else redis.call('HDEL', run, 'steers') end
return {'ok', found, more}
