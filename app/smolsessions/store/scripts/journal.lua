-- Return the length of an open turn's journal, the number of effects that it must hold, and name and size of at most `most` of its
-- entries, in no order.
-- ARGV: ref turn most
local journal, found = key('journal', ref, turn), {}
for _, name in ipairs(redis.call('HRANDFIELD', journal, most)) do
  found[#found + 1] = name
  found[#found + 1] = redis.call('HSTRLEN', journal, name)
end
return {redis.call('HLEN', journal), redis.call('HGET', key('run', ref, turn), 'effects') or '0', found}
