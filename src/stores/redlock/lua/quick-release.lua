-- quick-release.lua   gives back locks; from the first other item on, release.lua goes on
-- ARGV per item 2: owner quiet
local QUICK = redis.call
local size = #KEYS - 2
local answers = {}
local next = 1
while next <= size do
  local plain, owner = KEYS[next + 2], ARGV[2 * next - 1]
  if redis.pcall('GET', plain) ~= owner then break end
  local name = string.sub(plain, #KEYS[1] - #'leasehold:redlock' + 1)
  local info = KEYS[1] .. ':info:' .. name
  local news = false
  local channel = 'leasehold:redlock:bell:' .. name
  local listeners = ARGV[2 * next] ~= '1' and QUICK('PUBSUB', 'NUMSUB', channel)[2] or 0
  if listeners > 0 then
    local announced = string.find(QUICK('GET', info) or '', '^%d+:%d+:%d+:1:')
    news = listeners .. (announced and ' ended ' or ' freed ') .. owner
  end
  QUICK('DEL', plain, info)
  QUICK('ZREM', KEYS[2], name)
  if news then QUICK('PUBLISH', channel, news) end
  answers[next] = 1
  next = next + 1
end
if next > size then return answers end
