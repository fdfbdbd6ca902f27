-- common.lua   what the scripts share. Each includes it behind its fast path: creating these functions takes longer than a fast path.
--
-- KEYS record, then plain… one per item. The side keys are named after these.
-- On each node there is, for all names together:
--   record   hash    format run id state since longest nodes manifest voter: its identity and whether it votes; counter: the largest token it knows of;
--                    :<name> for each name that is held: the entry of an exclusive lease with its owner behind, nothing for shared ones
-- and per key, all of them gone when its last lease ends:
--   plain    string  the owner of an exclusive lease, or SHARED while readers hold: the key that other libraries use
--   readers  zset    the owners of shared leases, by the time at which each expires
--   entries  hash    owner of a shared lease → its entry
-- An entry is token:since:version:announce:length:value. An entry of a name that is not held any more, or of another owner, means nothing.
local call = redis.call
local SHARED = 'leasehold:shared'
local WAKEUP = 'leasehold:redlock:wakeup:'
-- Subscribed to over connections on which the server said that this is its run_id.
local RUN = 'leasehold:redlock:run:'
-- The owners that were cut off, of all keys: every process that holds a lock subscribes to this one.
local REVOKED = 'leasehold:redlock:revoked'
-- MAX_OWNERS: owners named in one message. A message of megabytes would stall the server and its subscribers.
local MAX_OWNERS = 500
-- MAX_EXPIRED: expired readers removed by one call. More arguments than Lua can unpack would fail.
local MAX_EXPIRED = 1000
-- Clients may put a prefix before every key. Messages carry names without it.
local PREFIX = string.sub(KEYS[1], 1, -1 - #'leasehold:redlock')
local READERS = KEYS[1] .. ':readers:'
local ENTRIES = KEYS[1] .. ':entries:'

local clock = call('TIME')
local micros = clock[1] * 1000000 + clock[2]
local now = math.floor(micros / 1000)

local function whole(number)
  return string.format('%.0f', number)
end

local function runId()
  return string.match(call('INFO', 'server'), 'run_id:(%x+)')
end

-- The server is asked for its run_id, not the caller: a caller that has not noticed a restart would let a node vote that
-- came back with yesterday's data.
local function standing(expected, nodes)
  -- As in vote.lua: a subscriber proves the run.
  if call('PUBSUB', 'NUMSUB', RUN .. expected)[2] == 0 and runId() ~= expected then return 'stranger' end
  local record = call('HMGET', KEYS[1], 'run', 'state', 'nodes')
  if record[1] ~= expected or record[2] ~= 'votes' then return 'sits' end
  if record[3] ~= nodes then return 'other' end
  return 'votes'
end

local function nameOf(plain)
  return string.sub(plain, #PREFIX + 1)
end

local function sideKeys(plain)
  local name = nameOf(plain)
  return READERS .. name, ENTRIES .. name
end

-- The message carries the number of subscribers: the more there are, the farther apart they should ask. Returns it too.
local function notify(plain, event)
  local channel = WAKEUP .. nameOf(plain)
  local subscribers = call('PUBSUB', 'NUMSUB', channel)[2]
  if subscribers > 0 then call('PUBLISH', channel, subscribers .. ' ' .. event) end
  return subscribers
end

-- What the plain key contains, as text. A key of another type is a holder too, of another library.
local function content(plain)
  local value = redis.pcall('GET', plain)
  if type(value) ~= 'table' then return value end
  if string.find(value.err, 'WRONGTYPE', 1, true) then return '(' .. call('TYPE', plain).ok .. ')' end
  error(value)
end

local function formatEntry(token, since, version, announce, value)
  return token .. ':' .. since .. ':' .. version .. ':' .. announce .. ':' .. #value .. ':' .. value
end

-- token, since, version, value, announce of an owner; nothing if it has no entry. Without a value: an empty one.
local function readEntry(plain, entries, owner, shared)
  local text = shared and call('HGET', entries, owner) or not shared and call('HGET', KEYS[1], ':' .. nameOf(plain))
  local token, since, version, announce, length, rest = string.match(text or '', '^(%d+):(%d+):(%d+):([01]):(%d+):(.*)$')
  if not token or (not shared and string.sub(rest, length + 1) ~= owner) then return nil end
  return token, since, version, string.sub(rest, 1, length), announce
end

local function writeEntry(plain, entries, owner, shared, text)
  if shared then
    call('HSET', entries, owner, text)
    call('PEXPIRE', entries, whole(math.max(call('PTTL', plain), 1)))
    text, owner = '', ''
  end
  call('HSET', KEYS[1], ':' .. nameOf(plain), text .. owner)
end

-- The first entry of a lease. metadata: announce..value
local function writeFirstEntry(plain, entries, owner, shared, token, metadata)
  local announce = string.sub(metadata, 1, 1)
  writeEntry(plain, entries, owner, shared, formatEntry(token, whole(now), '1', announce, string.sub(metadata, 2)))
  if announce == '1' then notify(plain, 'changed ' .. owner .. ' 1') end
  -- Waiters that are about to ask do not, if a majority of nodes announces this.
  if not shared then notify(plain, 'taken ' .. owner) end
end

-- Readers whose lease expired, and readers whose plain key was deleted, hold nothing: removes them.
-- Returns the content of the plain key afterwards.
local function dropExpired(plain, readers, entries)
  local holder = content(plain)
  if holder ~= SHARED then return holder end
  local expired = call('ZRANGEBYSCORE', readers, '-inf', now, 'LIMIT', 0, MAX_EXPIRED)
  if #expired > 0 then
    call('ZREM', readers, unpack(expired))
    call('HDEL', entries, unpack(expired))
  end
  if call('EXISTS', readers) == 1 then return SHARED end
  call('DEL', plain, readers, entries)
  return false
end

-- The plain key and its side keys expire with the last reader.
local function alignExpiration(plain, readers, entries)
  local last = call('ZRANGE', readers, -1, -1, 'WITHSCORES')[2]
  local left = whole(math.max(tonumber(last) - now, 1))
  call('SET', plain, SHARED, 'PX', left)
  call('PEXPIRE', readers, left)
  call('PEXPIRE', entries, left)
  return tonumber(last)
end

local function isMine(holder, readers, owner)
  return holder == owner or (holder == SHARED and call('ZSCORE', readers, owner) ~= false)
end

-- One row of a listing. The caller parses the entry: parsing it here would keep every other client waiting.
local function addRow(rows, name, owner, shared, ttl, entry)
  local last = #rows
  rows[last + 1], rows[last + 2], rows[last + 3], rows[last + 4], rows[last + 5] = name, owner, shared, ttl, entry
end

-- scored: owner, when its lease expires, and so on
local function addReaders(rows, plain, entriesKey, scored)
  local owners = {}
  for i = 1, #scored, 2 do owners[#owners + 1] = scored[i] end
  if #owners == 0 then return end
  local entries = call('HMGET', entriesKey, unpack(owners))
  for i, owner in ipairs(owners) do
    local left = tonumber(scored[2 * i]) - now
    if left > 0 then addRow(rows, nameOf(plain), owner, 1, left, entries[i] or '') end
  end
end

-- Ends all leases of a key, and notifies their owners. `holder`: what dropExpired returned.
local function cutOff(plain, holder)
  local readers, entries = sideKeys(plain)
  local owners = holder == SHARED and call('ZRANGE', readers, 0, -1) or { holder }
  for first = 1, #owners, MAX_OWNERS do
    local last = math.min(first + MAX_OWNERS - 1, #owners)
    call('PUBLISH', REVOKED, cjson.encode({ nameOf(plain), unpack(owners, first, last) }))
  end
  notify(plain, 'changed ' .. owners[#owners] .. ' 0')
  call('DEL', plain, readers, entries)
  call('HDEL', KEYS[1], ':' .. nameOf(plain))
  return owners
end

-- An item that fails must not fail the others. `first` of `size` items, whose arguments begin behind `before`.
local function runItems(first, size, step, before, work, answers)
  for i = first, size do
    local ok, answer = pcall(work, KEYS[i + 1], step * (i - 1) + before + 1)
    if not ok then answer = { 2, type(answer) == 'table' and (answer.err or 'unknown error') or tostring(answer) } end
    answers[#answers + 1] = answer
  end
  return answers
end

-- Leases that expired leave their names in the record. A sample is checked now and then, so the record stays about as small as
-- what is held. (Redis before 6.2 has no HRANDFIELD, and keeps them until the next listing.)
-- `every`: one in so many calls sweeps. It samples as many fields, and as many again per item: about what these calls can leave behind.
local function sweepExpired(every, size)
  local sample = redis.pcall('HRANDFIELD', KEYS[1], every + every * size)
  for _, field in ipairs(sample.err and {} or sample) do
    if string.sub(field, 1, 1) == ':' and call('EXISTS', PREFIX .. string.sub(field, 2)) == 0 then call('HDEL', KEYS[1], field) end
  end
end
