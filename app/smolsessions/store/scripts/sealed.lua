-- Return a part of one key's sealed records: the cursor of the next part (0: it was the last), numbers of records by id of their
-- key, and place and value of those that another key than `own` sealed (empty: none). A value of a log has its event's name in front.
-- ARGV: server_key own cursor
local AT_ONCE, MOST_BYTES, MOST_READ = 20, 1048576, 500
local kind, counts, others, read, bytes = redis.call('TYPE', server_key).ok, {}, {}, 0, 0
local is_log = string.match(server_key, '^{%w+}:log:')
local function see(place, value)
  read, bytes = read + 1, bytes + #value
  local start = is_log and (string.find(value, '\n', 1, true) or 0) or 0
  local version, size = string.byte(value, start + 1, start + 2)
  if #value - start < 30 or not (version == 1 or version == 129) then return end
  local id = string.sub(value, start + 3, start + 2 + size)
  counts[id] = (counts[id] or 0) + 1
  if own ~= '' and id ~= own then
    others[#others + 1] = place
    others[#others + 1] = value
  end
end
repeat
  if kind == 'list' then
    local values = redis.call('LRANGE', server_key, cursor, cursor + AT_ONCE - 1)
    for i, value in ipairs(values) do see(cursor + i - 1, value) end
    cursor = #values < AT_ONCE and '0' or cursor + AT_ONCE
  elseif kind == 'hash' then
    local found = redis.call('HSCAN', server_key, cursor, 'COUNT', 1)
    for i = 1, #found[2], 2 do see(found[2][i], found[2][i + 1]) end
    cursor = found[1]
  else
    cursor = '0'
  end
until cursor == '0' or read >= MOST_READ or bytes >= MOST_BYTES
local numbers = {}
for id, number in pairs(counts) do
  numbers[#numbers + 1] = id
  numbers[#numbers + 1] = number
end
return {cursor, numbers, others}
