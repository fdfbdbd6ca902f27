-- quick-raise.lua   round 2 for locks that are all still mine; else, and now and then to tidy up, raise.lua does the rest
-- ARGV per item 3: owner token announce..value
local QUICK = redis.call
local size = #KEYS - 1
local bare = #KEYS[1] - #'leasehold:redlock' + 1
local channels, fields, answers = {}, {}, {}
local highest = '0'
-- An error: a key that we have no right to. The others must not suffer.
local found = redis.pcall('MGET', unpack(KEYS, 2))
local quick = not found.err
for i, mine in ipairs(found) do
  local a = 3 * i - 2
  local owner, token, value = ARGV[a], ARGV[a + 1], ARGV[a + 2]
  if mine ~= owner or string.sub(value, 1, 1) == '1' then
    quick = false
    break
  end
  local name = string.sub(KEYS[i + 1], bare)
  channels[i] = 'leasehold:redlock:bell:' .. name
  fields[2 * i - 1] = ':' .. name
  -- A token is microseconds or more: since when it is held.
  fields[2 * i] = token .. ':' .. string.format('%.0f', token / 1000) .. ':1:0:' .. #value - 1 .. ':' .. string.sub(value, 2) .. owner
  if tonumber(token) > tonumber(highest) then highest = token end
end
if quick then
  if tonumber(highest) > tonumber(QUICK('HGET', KEYS[1], 'counter') or 0) then
    fields[2 * size + 1] = 'counter'
    fields[2 * size + 2] = highest
  end
  QUICK('HSET', KEYS[1], unpack(fields))
  -- Those who were about to ask need not.
  local listeners = QUICK('PUBSUB', 'NUMSUB', unpack(channels))
  for i = 1, size do
    if listeners[2 * i] > 0 then QUICK('PUBLISH', channels[i], listeners[2 * i] .. ' taken ' .. ARGV[3 * i - 2]) end
  end
  if highest % 16 ~= 0 then return answers end
end
