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
  QUICK('DEL', plain, KEYS[1] .. ':info:' .. name)
  if ARGV[2 * next] ~= '1' then
    QUICK('ZREM', KEYS[2], name)
    local channel = 'leasehold:redlock:bell:' .. name
    local listeners = QUICK('PUBSUB', 'NUMSUB', channel)[2]
    if listeners > 0 then QUICK('PUBLISH', channel, listeners .. ' freed ' .. owner) end
  end
  answers[next] = 1
  next = next + 1
end
if next > size then return answers end
