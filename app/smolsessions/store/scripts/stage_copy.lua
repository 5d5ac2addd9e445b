-- Copy some entries of a conversation's key from `cursor` on to a staged key. A list is copied up to `last` entries (empty: all),
-- a hash of turns up to turn `last`, images one by one as they are large. Of the entries `gone` only the tag is copied. Returns the
-- next cursor, or `0` after the last entry.
-- ARGV: ref staged kind cursor last ...gone
local from, staged_key = key(kind, ref), key('staged', staged, kind)
local AT_ONCE, MOST_READ = 20, 1000
local is_list, read, bytes = redis.call('TYPE', from).ok == 'list', 0, 0
local is_gone = {}
for _, index in ipairs(gone) do is_gone[tonumber(index)] = true end

local function put(command, values)
  read = read + AT_ONCE
  for _, value in ipairs(values) do bytes = bytes + #value end
  if #values > 0 then redis.call(command, staged_key, unpack(values)) end
end

local function copy_entries()
  local start = tonumber(cursor)
  local stop = math.min(start + AT_ONCE, tonumber(last) or math.huge)
  local values = stop > start and redis.call('LRANGE', from, start, stop - 1) or {}
  cursor = #values < AT_ONCE and '0' or stop
  for i, value in ipairs(values) do
    if is_gone[start + i - 1] then values[i] = string.sub(value, -16) end
  end
  if redis.call('LLEN', staged_key) == start then put('RPUSH', values) end  -- else the reply was lost
end

local function copy_fields()
  local found, values = redis.call('HSCAN', from, cursor, 'COUNT', kind == 'images' and 1 or AT_ONCE), {}
  for i = 1, #found[2], 2 do
    if last == '' or (parse_int(found[2][i]) or math.huge) <= tonumber(last) then
      values[#values + 1] = found[2][i]
      values[#values + 1] = found[2][i + 1]
    end
  end
  cursor = found[1]
  put('HSET', values)
end

repeat
  if is_list then copy_entries() else copy_fields() end
until cursor == '0' or read >= MOST_READ or bytes >= PIECE_BYTES
redis.call('EXPIRE', staged_key, STAGED_S)
return cursor
