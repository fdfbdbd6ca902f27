-- list.lua   one page of the holders of all names that match. No fast path.
-- KEYS record      ARGV cursor pattern count
-- → { cursor, now, rows, crowded }     cursor: for the next page, 0 at the end      a name may come twice, as with HSCAN
-- rows: key owner shared ttlMs entry, one behind the other      crowded: keys with too many readers, for inspect.lua
if #KEYS ~= 1 or #ARGV ~= 3 then return redis.error_reply('ERR leasehold: list.lua takes the record and 3 arguments') end

-- include common.lua

local page = call('HSCAN', KEYS[1], ARGV[1], 'MATCH', ARGV[2], 'COUNT', ARGV[3])
local fields = page[2]
local plains, rows, crowded, expired = {}, {}, {}, {}
for i = 1, #fields, 2 do plains[#plains + 1] = PREFIX .. string.sub(fields[i], 2) end
-- An error: a name that this user has no right to. The others are listed.
local contents = #plains > 0 and redis.pcall('MGET', unpack(plains)) or {}
if contents.err then contents = {} end
-- MAX_ROWS: readers on one page. More would keep the server from its other clients for longer than a page may.
local MAX_ROWS = 1000
local room = MAX_ROWS
for i, plain in ipairs(plains) do
  local seen, holder = true, contents[i]
  -- MGET answers nil for a key of another type, which is a holder.
  if not holder then seen, holder = pcall(content, plain) end
  if holder == SHARED then
    local readers, entries = sideKeys(plain)
    room = room - 1 - call('ZCARD', readers)
    if room < 0 then
      crowded[#crowded + 1] = nameOf(plain)
    else
      addReaders(rows, plain, entries, call('ZRANGE', readers, 0, -1, 'WITHSCORES'))
    end
  elseif holder and seen then
    addRow(rows, nameOf(plain), holder, 0, call('PTTL', plain), fields[2 * i])
  elseif seen then
    expired[#expired + 1] = fields[2 * i - 1]
  end
end
-- Leases that expired leave their names in the record.
if #expired > 0 then call('HDEL', KEYS[1], unpack(expired)) end
return { page[1], whole(now), rows, crowded }
