-- quick-release.lua   gives back locks that are all still mine; else release.lua does it
-- ARGV per item 2: owner quiet
local QUICK = redis.call
local size = #KEYS - 1
local plains, names, channels, told = {}, {}, {}, {}
for i = 1, size do
  plains[i] = KEYS[i + 1]
  names[i] = string.sub(KEYS[i + 1], #KEYS[1] - 16)
  if ARGV[2 * i] ~= '1' then
    channels[#channels + 1] = 'leasehold:redlock:bell:' .. names[i]
    told[#told + 1] = i
  end
end
local quick = true
local answers = {}
local found = redis.pcall('MGET', unpack(plains))
for i = 1, size do
  if found[i] ~= ARGV[2 * i - 1] then quick = false end
  answers[i] = 1
end
if quick then
  local listeners = #channels > 0 and QUICK('PUBSUB', 'NUMSUB', unpack(channels)) or {}
  QUICK('DEL', unpack(plains))
  for at, i in ipairs(told) do
    if listeners[2 * at] > 0 then
      local announced = string.find(QUICK('HGET', KEYS[1] .. ':index', names[i]) or '', '^%d+:%d+:%d+:1:')
      QUICK('PUBLISH', channels[at], listeners[2 * at] .. (announced and ' ended ' or ' freed ') .. ARGV[2 * i - 1])
    end
  end
  QUICK('HDEL', KEYS[1] .. ':index', unpack(names))
  return answers
end
