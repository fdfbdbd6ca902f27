-- quick-raise.lua   round 2 for locks; from the first other item on, raise.lua goes on
-- ARGV per item 5: owner token ttlMs announce value
local QUICK = redis.call
local at = QUICK('TIME')
local today = string.format('%.0f', math.floor(at[1] * 1000 + at[2] / 1000))
local size = #KEYS - 2
local highest = 0
local answers = {}
local next = 1
while next <= size do
  local a = 5 * next - 4
  local plain, owner, token, value = KEYS[next + 2], ARGV[a], ARGV[a + 1], ARGV[a + 4]
  if ARGV[a + 3] == '1' or redis.pcall('GET', plain) ~= owner then break end
  local name = string.sub(plain, #KEYS[1] - #'leasehold:redlock' + 1)
  QUICK('SET', KEYS[1] .. ':info:' .. name, token .. ':' .. today .. ':1:0:' .. #value .. ':' .. value .. owner, 'PX', ARGV[a + 2])
  QUICK('ZADD', KEYS[2], today + ARGV[a + 2], name)
  -- Those who were about to ask need not.
  local channel = 'leasehold:redlock:bell:' .. name
  local listeners = QUICK('PUBSUB', 'NUMSUB', channel)[2]
  if listeners > 0 then QUICK('PUBLISH', channel, listeners .. ' taken ' .. owner) end
  highest = math.max(highest, tonumber(token))
  answers[next] = 1
  next = next + 1
end
if next > size then
  if highest > tonumber(QUICK('HGET', KEYS[1], 'counter') or 0) then
    QUICK('HSET', KEYS[1], 'counter', string.format('%.0f', highest))
  end
  if highest % 16 ~= 0 then return answers end
end
