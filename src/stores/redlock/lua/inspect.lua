-- inspect.lua   one page of the holders of one key. No fast path.
-- KEYS record plain      ARGV cursor count      → as list.lua
if #KEYS ~= 2 or #ARGV ~= 2 then return redis.error_reply('ERR leasehold: inspect.lua takes 2 keys and 2 arguments') end

-- include common.lua

local plain, rows = KEYS[2], {}
local readers, entries = sideKeys(plain)
local holder = content(plain)
if holder == SHARED then
  local page = call('ZSCAN', readers, ARGV[1], 'COUNT', ARGV[2])
  addReaders(rows, plain, entries, page[2])
  return { page[1], whole(now), rows, {} }
end
if holder then
  addRow(rows, nameOf(plain), holder, 0, call('PTTL', plain), call('HGET', KEYS[1], ':' .. nameOf(plain)) or '')
end
return { '0', whole(now), rows, {} }
