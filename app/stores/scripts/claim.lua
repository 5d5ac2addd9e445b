-- Take up to `most` conversations, the longest ready first, with lease, fence and the head of their queues. A claim counts
-- as an attempt once its `started` is in the journal: before that nothing was done that could be done twice.
-- ARGV: worker lease_us most ...agents
local claims = {}
while #claims < tonumber(most) do
  local oldest, score, set
  for _, agent in ipairs(agents) do
    local first = redis.call('ZRANGE', key('ready', agent), 0, 0, 'WITHSCORES')
    if first[1] and (not oldest or tonumber(first[2]) < score) then
      oldest, score, set = first[1], tonumber(first[2]), key('ready', agent)
    end
  end
  if not oldest then break end
  redis.call('ZREM', set, oldest)
  local conversation, turn = key('conversation', oldest), redis.call('LINDEX', key('queue', oldest), 0)
  if turn then
    local run, at = key('run', oldest, turn), now()
    local fence = redis.call('HINCRBY', conversation, 'fences', 1) .. ':' .. worker .. ':' .. at
    redis.call('HSET', conversation, 'fence', fence)
    redis.call('ZADD', leases, at + lease_us, oldest)
    local attempt = tonumber(redis.call('HGET', run, 'attempts') or 0)
    if attempt == 0 or redis.call('HEXISTS', key('journal', oldest, turn), 'started:' .. attempt) == 1 then
      attempt = redis.call('HINCRBY', run, 'attempts', 1)
    end
    redis.call('HSETNX', run, 'started', at)
    local started = redis.call('HGET', run, 'started')
    local head = redis.call('HMGET', conversation, 'generation', 'head')
    claims[#claims + 1] = {oldest, turn, fence, attempt, started, redis.call('LINDEX', key('turns', oldest), turn - 1) or '',
      redis.call('HGET', run, 'input') or '', head[1], head[2] or '', redis.call('LLEN', key('steps', oldest, head[1])),
      redis.call('LLEN', key('log', oldest, turn)), redis.call('HGET', run, 'cancel') or '',
      redis.call('SMEMBERS', key('watch', oldest, turn)),
      redis.call('HGET', key('variables', oldest, head[1]), '') or ''}
  end
end
return claims
