-- quick-vote.lua   round 1 for locks that nobody holds; from the first other item on, vote.lua goes on
-- ARGV voter maxTtlMs token aloud, then per item 2: owner terms
-- voter: the run and the number of nodes, as admit.lua wrote them down      aloud: 1 if others may be about to ask for one of these
local QUICK = redis.call
local self = QUICK('HMGET', KEYS[1], 'voter', 'counter', 'longest')
local run = string.sub(ARGV[1], 1, 40)
-- Asked of the server itself and not of the caller: a caller that has not noticed a restart would vouch for a node that
-- came back with yesterday's data.
local server = QUICK('INFO', 'server')
local _, at = string.find(server, 'run_id:' .. run, 1, true)
if not at then return { 'stranger' } end
if self[1] ~= ARGV[1] then
  local record = QUICK('HMGET', KEYS[1], 'run', 'state')
  return { record[1] == run and record[2] == 'votes' and 'other' or 'sits' }
end
if not self[3] or tonumber(self[3]) < tonumber(ARGV[2]) then QUICK('HSET', KEYS[1], 'longest', ARGV[2]) end

-- Whoever asks for the time itself pays for another call. Redis before 6.2 wants that.
local clock = string.match(server, 'server_time_usec:(%d+)', at)
if not clock then
  local time = QUICK('TIME')
  clock = string.format('%.0f', time[1] * 1000000 + time[2])
end
local token = tonumber(ARGV[3])
-- Larger than every token known here, and not behind the clock, which is what keeps tokens growing when counters were lost.
local raises = token > tonumber(self[2] or 0) and token >= tonumber(clock)
local answers = { 'votes', self[2] or '0', clock, raises and 1 or 0 }
local size = #KEYS - 1
local next = 1
while next <= size do
  local a = 2 * next + 3
  -- False: somebody holds it, perhaps we. An error: a key of another type, and for vote.lua to explain.
  local set = tonumber(ARGV[a + 1]) and redis.pcall('SET', KEYS[next + 1], ARGV[a], 'PX', ARGV[a + 1], 'NX')
  if not set or set.err then break end
  next = next + 1
end
if raises and next > 1 then
  -- A later item of this batch may steal what was just taken: without this its token would not be larger than its victim's.
  answers[2] = ARGV[3]
  local bare = #KEYS[1] - #'leasehold:redlock' + 1
  -- The entry of a lease without a value, up to its owner. A token is microseconds: since when it is held.
  local entry = ARGV[3] .. ':' .. string.sub(ARGV[3], 1, -4) .. ':1:0:0:'
  local fields, channels = { 'counter', ARGV[3] }, {}
  for i = 1, next - 1 do
    local name = string.sub(KEYS[i + 1], bare)
    fields[2 * i + 1] = ':' .. name
    fields[2 * i + 2] = entry .. ARGV[2 * i + 3]
    channels[i] = 'leasehold:redlock:bell:' .. name
  end
  QUICK('HSET', KEYS[1], unpack(fields))
  if ARGV[4] == '1' then
    local listeners = QUICK('PUBSUB', 'NUMSUB', unpack(channels))
    for i = 1, next - 1 do
      if listeners[2 * i] > 0 then QUICK('PUBLISH', channels[i], listeners[2 * i] .. ' taken ' .. ARGV[2 * i + 3]) end
    end
  end
end
if next > size and (not raises or token % 16 ~= 0) then return answers end
