-- Conversations with work that no worker would find or that two could find, and leases without a holder.
local astray, queues = {}, '{p000}:queue:'
for _, name in ipairs(redis.call('KEYS', queues .. '*')) do
  local ref = string.sub(name, #queues + 1)
  local agent = redis.call('HGET', '{p000}:conversation:' .. ref, 'agent') or ''
  local ready = redis.call('ZSCORE', '{p000}:ready:' .. agent, ref)
  local leased = redis.call('ZSCORE', '{p000}:leases', ref)
  local waits = redis.call('ZSCORE', '{p000}:waiting', ref)
  if waits and (ready or leased) then astray[#astray + 1] = ref .. ' waits for a person, and has work or a lease' end
  if not ready and not leased and not waits then astray[#astray + 1] = ref .. ' has work and is in no set' end
  if ready and leased then astray[#astray + 1] = ref .. ' is in both sets' end
end
for _, ref in ipairs(redis.call('ZRANGE', '{p000}:leases', 0, -1)) do
  if redis.call('HEXISTS', '{p000}:conversation:' .. ref, 'fence') == 0 then
    astray[#astray + 1] = ref .. ' is leased without a fence'
  end
end
return astray
