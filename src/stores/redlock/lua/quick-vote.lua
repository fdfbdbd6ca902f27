-- quick-vote.lua   round 1 for locks that nobody holds; from the first other item on, vote.lua goes on
-- ARGV run nodes maxTtlMs token, then per item 2: owner terms
local QUICK = redis.call
local self = QUICK('HMGET', KEYS[1], 'run', 'state', 'nodes', 'counter', 'longest')
-- Looking for a text in a text is several times faster than matching a pattern.
if not string.find(QUICK('INFO', 'server'), 'run_id:' .. ARGV[1], 1, true) then return { 'stranger' } end
if self[1] ~= ARGV[1] or self[2] ~= 'votes' then return { 'sits' } end
if self[3] ~= ARGV[2] then return { 'other' } end
if not self[5] or tonumber(self[5]) < tonumber(ARGV[3]) then QUICK('HSET', KEYS[1], 'longest', ARGV[3]) end

local at = QUICK('TIME')
local token = tonumber(ARGV[4])
-- Larger than every token known here, and not behind the clock, which is what keeps tokens growing when counters were lost.
local raises = token > tonumber(self[4] or 0) and token >= at[1] * 1000000 + at[2]
local answers = { 'votes', self[4] or '0', at[1], at[2], raises and 1 or 0 }
local size = #KEYS - 1
local next = 1
while next <= size do
  local a = 2 * next + 3
  -- False: somebody holds it, perhaps we. An error: a key of another type, and for vote.lua to explain.
  local set = tonumber(ARGV[a + 1]) and redis.pcall('SET', KEYS[next + 1], ARGV[a], 'PX', ARGV[a + 1], 'NX')
  if not set or set.err then break end
  next = next + 1
end
-- The entry of a lease without a value, up to its owner. A token is microseconds: since when it is held.
local ENTRY = ARGV[4] .. ':' .. string.sub(ARGV[4], 1, -4) .. ':1:0:0:'
if raises and next > 1 then
  local bare = #KEYS[1] - #'leasehold:redlock' + 1
  local fields, channels = { 'counter', ARGV[4] }, {}
  for i = 1, next - 1 do
    local name = string.sub(KEYS[i + 1], bare)
    channels[i] = 'leasehold:redlock:bell:' .. name
    fields[2 * i + 1] = ':' .. name
    fields[2 * i + 2] = ENTRY .. ARGV[2 * i + 3]
  end
  QUICK('HSET', KEYS[1], unpack(fields))
  -- Those who were about to ask need not, if most nodes say so.
  local listeners = QUICK('PUBSUB', 'NUMSUB', unpack(channels))
  for i = 1, next - 1 do
    if listeners[2 * i] > 0 then QUICK('PUBLISH', channels[i], listeners[2 * i] .. ' taken ' .. ARGV[2 * i + 3]) end
  end
end
if next > size and (not raises or token % 16 ~= 0) then return answers end
