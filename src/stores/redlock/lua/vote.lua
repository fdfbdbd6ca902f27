-- vote.lua   round 1: set if absent, and if the token is good, raise the counter to it
-- KEYS record, then plain…      ARGV run channel, voter, maxTtlMs token notifyWaiters, then per item 2: owner terms
-- voter: the run, the number of nodes and the format, as admit.lua wrote them down
-- notifyWaiters: 1 if other processes may be about to ask for one of these      terms: ttlMs[ read][ steal][=announce..value]
-- → micros: all are held and raised | { 'votes', counter, micros, raised, item… } (no item: all are held) | { why not }
-- counter: with what this batch raised, since a steal may come behind its victim
-- item: 1 held | 3 held and raised | { 0, owner, ttlMs, token, version, value } | { 2, error }
-- Fast path: exclusive locks without a value that nobody holds. common.lua is included behind it.
local call = redis.call
local size = #KEYS - 1
if #ARGV ~= 5 + 2 * size then return redis.error_reply('ERR leasehold: vote.lua takes 5 arguments and 2 per key') end
local self = call('HMGET', KEYS[1], 'voter', 'counter', 'longest')
-- The server proves its run, not the caller: a caller that has not noticed a restart would let a node vote that came back with
-- yesterday's data. No connection outlives its server's process, and the subscribers of the run channel have asked for the run_id
-- over theirs: one of them is proof. Without one, INFO tells the run_id, for ten times the price.
if call('PUBSUB', 'NUMSUB', ARGV[1])[2] == 0 and not string.find(call('INFO', 'server'), 'run_id:' .. string.sub(ARGV[2], 1, 40), 1, true) then
  return { 'stranger' }
end
if self[1] ~= ARGV[2] then
  local record = call('HMGET', KEYS[1], 'run', 'state')
  return { record[1] == string.sub(ARGV[2], 1, 40) and record[2] == 'votes' and 'other' or 'sits' }
end
if self[3] ~= ARGV[3] and tonumber(self[3] or 0) < tonumber(ARGV[3]) then call('HSET', KEYS[1], 'longest', ARGV[3]) end

local time = call('TIME')
local clock = time[1] * 1000000 + time[2]
local token = tonumber(ARGV[4])
-- Larger than every token known here, and not behind the clock, which is what keeps tokens growing when counters were lost.
local raises = token >= clock and token > tonumber(self[2] or 0)
local counter = self[2] or '0'
local next = 1
-- A sweep takes longer than the vote of a lone claim, so one in 64 of these sweeps. A batch that swept as much at once would keep
-- the node from its other clients for milliseconds.
local sweepEvery = size == 1 and 64 or 16
local sweeps = token % sweepEvery == 0

-- fast path: from the first other item on, the long path continues.
-- A lone claim that nobody waits for needs none of the tables below.
if size == 1 and raises and ARGV[5] == '0' and not sweeps and tonumber(ARGV[7]) then
  local set = redis.pcall('SET', KEYS[2], ARGV[6], 'PX', ARGV[7], 'NX')
  if set and not set.err then
    local name = string.sub(KEYS[2], #KEYS[1] - #'leasehold:redlock' + 1)
    call('HSET', KEYS[1], 'counter', ARGV[4], ':' .. name, ARGV[4] .. ':' .. string.sub(ARGV[4], 1, -4) .. ':1:0:0:' .. ARGV[6])
    return clock
  end
end
while next <= size do
  local a = 2 * next + 4
  -- False: it is held, perhaps by this owner. An error: a key of another type. The long path answers both.
  local set = tonumber(ARGV[a + 1]) and redis.pcall('SET', KEYS[next + 1], ARGV[a], 'PX', ARGV[a + 1], 'NX')
  if not set or set.err then break end
  next = next + 1
end
if raises and next > 1 then
  -- A later item of this batch may steal what was just taken: without this its token would not be larger than its victim's.
  counter = ARGV[4]
  local nameStart = #KEYS[1] - #'leasehold:redlock' + 1
  -- The entry of a lease without a value, up to its owner. A token is microseconds, so it also tells since when the lease is held.
  local entry = ARGV[4] .. ':' .. string.sub(ARGV[4], 1, -4) .. ':1:0:0:'
  local fields, channels, notifies = { 'counter', ARGV[4] }, {}, ARGV[5] == '1'
  for i = 1, next - 1 do
    local name = string.sub(KEYS[i + 1], nameStart)
    fields[2 * i + 1] = ':' .. name
    fields[2 * i + 2] = entry .. ARGV[2 * i + 4]
    if notifies then channels[i] = 'leasehold:redlock:wakeup:' .. name end
  end
  call('HSET', KEYS[1], unpack(fields))
  if notifies then
    local subscribers = call('PUBSUB', 'NUMSUB', unpack(channels))
    for i = 1, next - 1 do
      if subscribers[2 * i] > 0 then call('PUBLISH', channels[i], subscribers[2 * i] .. ' taken ' .. ARGV[2 * i + 4]) end
    end
  end
end
if next > size and raises and not sweeps then return clock end
if next > size and not raises then return { 'votes', counter, string.format('%.0f', clock), 0 } end
-- end of the fast path

-- include common.lua

local answers = { 'votes', counter, whole(micros), raises and 1 or 0 }

local function refusal(holder, plain, readers, entries)
  local owner, ttl = holder, nil
  if holder == SHARED then
    local last = call('ZRANGE', readers, -1, -1, 'WITHSCORES')
    owner, ttl = last[1], last[2] - now
  else
    ttl = call('PTTL', plain)
  end
  local token, _, version, value = readEntry(plain, entries, owner, holder == SHARED)
  return { 0, owner, ttl >= 0 and whole(ttl) or false, token or false, version or false, value and value ~= '' and value or false }
end

local function vote(plain, a)
  local readers, entries = sideKeys(plain)
  local owner = ARGV[a]
  local ttl, how, metadata = string.match(ARGV[a + 1], '^(%d+)([^=]*)=?(.*)$')
  local reads, steals = string.find(how, 'read', 1, true), string.find(how, 'steal', 1, true)
  local holder = dropExpired(plain, readers, entries)
  if holder and isMine(holder, readers, owner) then return 1 end
  -- Nothing behind a steal is raised either: a reader beside a stealing reader would get the token of the victim.
  if steals then raises = false end
  if holder and steals then
    cutOff(plain, holder)
    holder = false
  end
  if holder and not (reads and holder == SHARED) then return refusal(holder, plain, readers, entries) end
  if reads then
    -- Readers whose plain key was deleted hold nothing any more.
    if not holder then call('DEL', readers, entries) end
    call('ZADD', readers, whole(now + ttl), owner)
    alignExpiration(plain, readers, entries)
  else
    call('SET', plain, owner, 'PX', ttl)
  end
  if not raises then return 1 end
  call('HSET', KEYS[1], 'counter', ARGV[4])
  answers[2] = ARGV[4]
  writeFirstEntry(plain, entries, owner, reads, ARGV[4], metadata == '' and '0' or metadata)
  return 3
end

for i = 1, next - 1 do answers[i + 4] = raises and 3 or 1 end
runItems(next, size, 2, 5, vote, answers)
if sweeps then sweepExpired(sweepEvery, size) end
return answers
