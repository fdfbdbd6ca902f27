-- quick-raise.lua   round 2 for locks that are all still mine and that nobody has to be told of; else raise.lua does it
-- ARGV per item 6: owner token ttlMs endsAt news (none, taken, changed) value
local QUICK = redis.call
local size = #KEYS - 1
local highest = '0'
local quick = true
local wanted = {}
local entries = {}
for i = 1, size do
  local a = 6 * i - 5
  local token, value = ARGV[a + 1], ARGV[a + 5]
  if ARGV[a + 4] ~= 'none' then quick = false end
  wanted[i] = KEYS[i + 1]
  entries[2 * i - 1] = string.sub(KEYS[i + 1], #KEYS[1] - 16)
  entries[2 * i] = ARGV[a + 3] .. ':' .. token .. ':1:0:' .. #value .. ':' .. value .. ARGV[a]
  if tonumber(token) > tonumber(highest) then highest = token end
end
wanted[size + 1] = KEYS[1] .. ':card'
local found = quick and redis.pcall('MGET', unpack(wanted)) or {}
local answers = {}
for i = 1, size do
  if found[i] ~= ARGV[6 * i - 5] then quick = false end
  answers[i] = 1
end
local counter, rest = string.match(found[size + 1] or '', '^(%d+)(.*)$')
if quick and counter then
  QUICK('HSET', KEYS[1] .. ':index', unpack(entries))
  if tonumber(highest) > tonumber(counter) then QUICK('SET', KEYS[1] .. ':card', highest .. rest) end
  if highest % 16 ~= 0 then return answers end
end
