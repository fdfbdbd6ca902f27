-- quick-handover.lua   behind quick-release.lua, the usual case of what follows: the first in line wants it alone and has no
-- further wishes. What is handed on is told only when the script ends, so whatever is saved here is saved between two holders.
local function handOver()
  local call = redis.call
  local PUBLISH = 'PUBLISH'
  local index, plain = KEYS[1], KEYS[2]
  -- Names with braces are for keyOf.
  if string.find(plain, '[{}]') then return false end
  local base = string.match(index, '^(.*leasehold:)held:') .. '{' .. plain .. '}:'
  local line = call('ZRANGE', base .. 'line', 0, 1)
  local first = line[1]
  if not first or call('EXISTS', base .. 'note') == 1 then return false end
  local place = call('HGET', base .. 'places', first) or ''
  local ttl, placeMs = string.match(place, '^2147483647:2147483647:(%d+):(%d+)::$')
  local clock = call('TIME')
  local text = clock[1] .. string.sub('00000' .. clock[2], -6)
  local till = tonumber(call('ZSCORE', base .. 'until', first) or 0)
  local last = call('HGET', index, '') or ''
  -- Somebody else, somebody dead, or a clock that went back.
  if not ttl or till <= tonumber(string.sub(text, 1, -4)) or last >= text then return false end
  if tonumber(placeMs) < tonumber(ttl) then ttl = placeMs end
  call('ZREM', base .. 'line', first)
  call('ZREM', base .. 'until', first)
  call('HDEL', base .. 'places', first)
  call('SET', plain, first, 'PX', ttl)
  if line[2] then call('HSET', index, '', text, plain, text .. ':' .. first, plain .. '\0', 1)
  else call('HSET', index, '', text, plain, text .. ':' .. first) end
  if string.sub(last, 1, 6) ~= string.sub(text, 1, 6) and call('PTTL', index) < 100800000 then
    call('PEXPIRE', index, 100800000)
  end
  call(PUBLISH, base .. 'bell', 'granted ' .. text .. ' ' .. ttl .. ' ' .. first)
  return true
end

-- It is released, whatever comes of handing it on.
if ended then
  local ok, handed = pcall(handOver)
  if ok and handed then return 1 end
end
