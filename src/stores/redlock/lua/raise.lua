-- raise.lua   round 2: where the key is still mine, the counter becomes at least the token
-- KEYS record, then plain…      ARGV per item 3: owner token announce..value
-- → item… (none: all raised)     item: 1 raised | 0 not mine | { 2, error }
-- On a node of any standing: that the key is mine proves that it remembers my vote, and so everything before it.
-- Fast path: exclusive locks without `announce` that are all still mine. common.lua is included behind it.
local call = redis.call
local size = #KEYS - 1
if #ARGV ~= 3 * size then return redis.error_reply('ERR leasehold: raise.lua takes 3 arguments per key') end
local quick, answers = false, {}

-- fast path: now and then the long path follows, to sweep expired names.
local nameStart = #KEYS[1] - #'leasehold:redlock' + 1
local channels, fields = {}, {}
local highest = '0'
-- An error: a key that this user has no right to. The long path answers each item on its own.
local found = redis.pcall('MGET', unpack(KEYS, 2))
quick = not found.err
for i, mine in ipairs(found) do
  local a = 3 * i - 2
  local owner, token, value = ARGV[a], ARGV[a + 1], ARGV[a + 2]
  if mine ~= owner or string.sub(value, 1, 1) == '1' then
    quick = false
    break
  end
  local name = string.sub(KEYS[i + 1], nameStart)
  channels[i] = 'leasehold:redlock:wakeup:' .. name
  fields[2 * i - 1] = ':' .. name
  -- A token is microseconds or more, so it also tells since when the lease is held.
  fields[2 * i] = token .. ':' .. string.format('%.0f', token / 1000) .. ':1:0:' .. #value - 1 .. ':' .. string.sub(value, 2) .. owner
  if tonumber(token) > tonumber(highest) then highest = token end
end
if quick then
  if tonumber(highest) > tonumber(call('HGET', KEYS[1], 'counter') or 0) then
    fields[2 * size + 1] = 'counter'
    fields[2 * size + 2] = highest
  end
  call('HSET', KEYS[1], unpack(fields))
  -- Waiters that are about to ask do not, if a majority of nodes announces this.
  local subscribers = call('PUBSUB', 'NUMSUB', unpack(channels))
  for i = 1, size do
    if subscribers[2 * i] > 0 then call('PUBLISH', channels[i], subscribers[2 * i] .. ' taken ' .. ARGV[3 * i - 2]) end
  end
  if highest % 16 ~= 0 then return answers end
end
-- end of the fast path

-- include common.lua

local raised = '0'

local function raise(plain, a)
  local readers, entries = sideKeys(plain)
  local owner, token = ARGV[a], ARGV[a + 1]
  local holder = dropExpired(plain, readers, entries)
  if not holder or not isMine(holder, readers, owner) then return 0 end
  if tonumber(token) > tonumber(raised) then raised = token end
  writeFirstEntry(plain, entries, owner, holder == SHARED, token, ARGV[a + 2])
  return 1
end

if not quick then
  answers = runItems(1, size, 3, 0, raise, {})
  if tonumber(raised) > tonumber(call('HGET', KEYS[1], 'counter') or 0) then call('HSET', KEYS[1], 'counter', raised) end
end
sweepExpired(16, size)
return answers
