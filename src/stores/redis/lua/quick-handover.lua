-- quick-handover.lua   behind quick-release.lua, the usual case of what follows: the first in line wants it alone and has no
-- further wishes. What is handed on is told only when the script ends, so whatever is saved here is saved between two holders.
local function handOver(index, plain, base)
  local call = redis.call
  local PUBLISH = 'PUBLISH'
  local line, places, till, note = base .. 'line', base .. 'places', base .. 'until', base .. 'note'
  local waiting = call('ZRANGE', line, 0, 1)
  local first, second = waiting[1], waiting[2]
  if not first then return false end
  local wants = '^2147483647:2147483647:(%d+):(%d+):(%w+)::$'
  local ttl, placeMs, ear = string.match(call('HGET', places, first) or '', wants)
  local clock = call('TIME')
  local text = clock[1] .. string.sub('00000' .. clock[2], -6)
  local ends = tonumber(call('ZSCORE', till, first) or 0)
  local last = call('HGET', index, '') or ''
  -- Somebody else, somebody dead, or a clock that went back.
  if not ttl or ends <= tonumber(string.sub(text, 1, -4)) or last >= text then return false end
  local noted
  if second then
    call('ZREM', line, first)
    call('ZREM', till, first)
    call('HDEL', places, first)
    noted = call('DEL', note)
  else
    noted = call('DEL', line, till, places, note) - 3
  end
  if noted > 0 then call(PUBLISH, base .. 'bell', 'changed') end
  if tonumber(placeMs) < tonumber(ttl) then ttl = placeMs end
  call('SET', plain, first, 'PX', ttl)
  if second then call('HSET', index, '', text, plain, text .. ':' .. first, plain .. '\0', 1)
  else call('HSET', index, '', text, plain, text .. ':' .. first) end
  if string.sub(last, 1, 6) ~= string.sub(text, 1, 6) and call('PTTL', index) < 100800000 then
    call('PEXPIRE', index, 100800000)
  end
  call(PUBLISH, base .. 'bell:' .. ear, 'granted ' .. text .. ' ' .. ttl .. ' ' .. first)
  return true
end

-- It is released, whatever comes of handing it on.
if mine then
  local ok, handed = pcall(handOver, KEYS[1], KEYS[2], ARGV[2])
  if ok and handed then return 1 end
  if redis.call('GET', KEYS[2]) == ARGV[1] then redis.call('DEL', KEYS[2]) end
end
