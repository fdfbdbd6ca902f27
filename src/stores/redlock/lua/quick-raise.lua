-- quick-raise.lua   round 2 for locks; from the first other item on, raise.lua goes on
-- ARGV per item 6: owner token ttlMs endsAt news (none, taken, changed) value
local QUICK = redis.call
local size = #KEYS - 2
local highest = '0'
local answers = {}
local next = 1
while next <= size do
  local a = 6 * next - 5
  local plain, owner, token, value = KEYS[next + 2], ARGV[a], ARGV[a + 1], ARGV[a + 5]
  if ARGV[a + 4] ~= 'none' or redis.pcall('GET', plain) ~= owner then break end
  local name = string.sub(plain, #KEYS[1] - 16)
  QUICK('SET', KEYS[1] .. ':info:' .. name, token .. ':1:0:' .. #value .. ':' .. value .. owner, 'PX', ARGV[a + 2])
  QUICK('ZADD', KEYS[2], ARGV[a + 3], name)
  if tonumber(token) > tonumber(highest) then highest = token end
  answers[next] = 1
  next = next + 1
end
if next > size then
  local counter, rest = string.match(QUICK('GET', KEYS[1] .. ':card') or '', '^(%d+)(.*)$')
  if counter then
    if tonumber(highest) > tonumber(counter) then QUICK('SET', KEYS[1] .. ':card', highest .. rest) end
    if highest % 16 ~= 0 then return answers end
  end
end
