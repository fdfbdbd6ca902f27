-- quick-release.lua   gives back locks that are all still mine, each once; else release.lua does it
-- ARGV quiet (0 or 1 per item), then owner…      → as release.lua
local QUICK = redis.call
local size = #KEYS - 1
local bare = #KEYS[1] - #'leasehold:redlock' + 1
local channels, fields, seen = {}, {}, {}
-- An error: a key that we have no right to. The others must not suffer.
local found = redis.pcall('MGET', unpack(KEYS, 2))
local quick = not found.err
for i, mine in ipairs(found) do
  local plain = KEYS[i + 1]
  if mine ~= ARGV[i + 1] or seen[plain] then
    quick = false
    break
  end
  seen[plain] = true
  local name = string.sub(plain, bare)
  channels[i] = 'leasehold:redlock:bell:' .. name
  fields[i] = ':' .. name
end
if quick then
  local listeners = QUICK('PUBSUB', 'NUMSUB', unpack(channels))
  QUICK('DEL', unpack(KEYS, 2))
  local answers, awaited = {}, false
  for i = 1, size do
    answers[i] = 1 + listeners[2 * i]
    awaited = awaited or listeners[2 * i] > 0
    if listeners[2 * i] > 0 and string.sub(ARGV[1], i, i) == '0' then
      local announced = string.find(QUICK('HGET', KEYS[1], fields[i]) or '', '^%d+:%d+:%d+:1:')
      QUICK('PUBLISH', channels[i], listeners[2 * i] .. (announced and ' ended ' or ' freed ') .. ARGV[i + 1])
    end
  end
  QUICK('HDEL', KEYS[1], unpack(fields))
  return awaited and answers or {}
end
