-- common.lua   what the scripts share. Each includes it behind its fast path: making these functions takes longer than a fast path.
--
-- KEYS 1 record, then plain… one per item. The others are named after these.
-- On each node there is, for all names together:
--   record   hash    format run id state since longest nodes manifest voter: who this node is and whether it votes; counter: the largest token it knows of;
--                    :<name> for each name that is held: the entry of an exclusive lease with its owner behind, nothing for shared ones
-- and per key, all of them gone when its last lease ends:
--   plain    string  the owner of an exclusive lease, or SHARED while readers hold: what other libraries look at
--   readers  zset    who shares, by the time at which each lease ends
--   info     hash    owner → entry of each who shares
-- An entry is token:since:version:announce:length:value. One of a name that nobody holds any more, or another owner, means nothing.
local call = redis.call
local SHARED = 'leasehold:shared'
local WAKEUP = 'leasehold:redlock:wakeup:'
-- Who was cut off, of all keys: every process that holds anything listens to this one.
local REVOKED = 'leasehold:redlock:revoked'
-- How many owners one message names: a message of megabytes would be one stall.
local OWNERS_AT_MOST = 500
-- Clients may put a prefix before every key. Names travel without it.
local PREFIX = string.sub(KEYS[1], 1, -1 - #'leasehold:redlock')
local READERS = KEYS[1] .. ':readers:'
local INFO = KEYS[1] .. ':info:'

local clock = call('TIME')
local micros = clock[1] * 1000000 + clock[2]
local now = math.floor(micros / 1000)

local function whole(number)
  return string.format('%.0f', number)
end

local function run()
  return string.match(call('INFO', 'server'), 'run_id:(%x+)')
end

-- Asked of the server itself and not of the caller: a caller that has not noticed a restart would vouch for a node that
-- came back with yesterday's data.
local function standing(expected, nodes)
  local actual = run()
  if actual ~= expected then return 'stranger' end
  local record = call('HMGET', KEYS[1], 'run', 'state', 'nodes')
  if record[1] ~= actual or record[2] ~= 'votes' then return 'sits' end
  if record[3] ~= nodes then return 'other' end
  return 'votes'
end

local function nameOf(plain)
  return string.sub(plain, #PREFIX + 1)
end

local function sides(plain)
  local name = nameOf(plain)
  return READERS .. name, INFO .. name
end

-- The message carries the number of subscribers: the more there are, the farther apart they should ask. Returns it too.
local function notify(plain, news)
  local channel = WAKEUP .. nameOf(plain)
  local listeners = call('PUBSUB', 'NUMSUB', channel)[2]
  if listeners > 0 then call('PUBLISH', channel, listeners .. ' ' .. news) end
  return listeners
end

-- What the plain key holds, as text. A key of another type is a holder too, though none of ours.
local function content(plain)
  local value = redis.pcall('GET', plain)
  if type(value) ~= 'table' then return value end
  if string.find(value.err, 'WRONGTYPE', 1, true) then return '(' .. call('TYPE', plain).ok .. ')' end
  error(value)
end

local function entry(token, since, version, announce, value)
  return token .. ':' .. since .. ':' .. version .. ':' .. announce .. ':' .. #value .. ':' .. value
end

-- token, since, version, value, announce of an owner; nothing if it has no entry. Without a value: an empty one.
local function read(plain, info, owner, shared)
  local text = shared and call('HGET', info, owner) or not shared and call('HGET', KEYS[1], ':' .. nameOf(plain))
  local token, since, version, announce, length, rest = string.match(text or '', '^(%d+):(%d+):(%d+):([01]):(%d+):(.*)$')
  if not token or (not shared and string.sub(rest, length + 1) ~= owner) then return nil end
  return token, since, version, string.sub(rest, 1, length), announce
end

local function write(plain, info, owner, shared, text)
  if shared then
    call('HSET', info, owner, text)
    call('PEXPIRE', info, whole(math.max(call('PTTL', plain), 1)))
    text, owner = '', ''
  end
  call('HSET', KEYS[1], ':' .. nameOf(plain), text .. owner)
end

-- The first entry of a lease. note: announce..value
local function announce(plain, info, owner, shared, token, note)
  local aloud = string.sub(note, 1, 1)
  write(plain, info, owner, shared, entry(token, whole(now), '1', aloud, string.sub(note, 2)))
  if aloud == '1' then notify(plain, 'changed ' .. owner .. ' 1') end
  -- Those who were about to ask need not, if most nodes say so.
  if not shared then notify(plain, 'taken ' .. owner) end
end

-- Readers whose time has passed, and readers whose plain key somebody deleted, hold nothing.
-- Returns the content of the plain key afterwards.
local function dropEnded(plain, readers, info)
  local holder = content(plain)
  if holder ~= SHARED then return holder end
  local ended = call('ZRANGEBYSCORE', readers, '-inf', now, 'LIMIT', 0, 1000)
  if #ended > 0 then
    call('ZREM', readers, unpack(ended))
    call('HDEL', info, unpack(ended))
  end
  if call('EXISTS', readers) == 1 then return SHARED end
  call('DEL', plain, readers, info)
  return false
end

-- The last reader's time is the key's time.
local function align(plain, readers, info)
  local last = call('ZRANGE', readers, -1, -1, 'WITHSCORES')[2]
  local left = whole(math.max(tonumber(last) - now, 1))
  call('SET', plain, SHARED, 'PX', left)
  call('PEXPIRE', readers, left)
  call('PEXPIRE', info, left)
  return tonumber(last)
end

local function isMine(holder, readers, owner)
  return holder == owner or (holder == SHARED and call('ZSCORE', readers, owner) ~= false)
end

-- For those who look. What is in an entry is read by the caller: here everybody else would wait for it.
local function addRow(rows, name, owner, shared, ttl, entry)
  local last = #rows
  rows[last + 1], rows[last + 2], rows[last + 3], rows[last + 4], rows[last + 5] = name, owner, shared, ttl, entry
end

-- scored: owner, when its lease ends, and so on
local function addReaders(rows, plain, info, scored)
  local owners = {}
  for i = 1, #scored, 2 do owners[#owners + 1] = scored[i] end
  if #owners == 0 then return end
  local entries = call('HMGET', info, unpack(owners))
  for i, owner in ipairs(owners) do
    local left = tonumber(scored[2 * i]) - now
    if left > 0 then addRow(rows, nameOf(plain), owner, 1, left, entries[i] or '') end
  end
end

-- Nobody holds it afterwards, and those who did are told. `holder`: what dropEnded returned.
local function revoke(plain, holder)
  local readers, info = sides(plain)
  local owners = holder == SHARED and call('ZRANGE', readers, 0, -1) or { holder }
  for first = 1, #owners, OWNERS_AT_MOST do
    local last = math.min(first + OWNERS_AT_MOST - 1, #owners)
    call('PUBLISH', REVOKED, cjson.encode({ nameOf(plain), unpack(owners, first, last) }))
  end
  notify(plain, 'changed ' .. owners[#owners] .. ' 0')
  call('DEL', plain, readers, info)
  call('HDEL', KEYS[1], ':' .. nameOf(plain))
  return owners
end

-- An item that fails must not take the others with it. `first` of `size` items, whose arguments begin behind `before`.
local function each(first, size, step, before, work, answers)
  for i = first, size do
    local ok, answer = pcall(work, KEYS[i + 1], step * (i - 1) + before + 1)
    if not ok then answer = { 2, type(answer) == 'table' and (answer.err or 'unknown error') or tostring(answer) } end
    answers[#answers + 1] = answer
  end
  return answers
end

-- Leases that ended without a release leave their names. Some are looked at now and then, so the record stays about as
-- small as what is held. (Redis before 6.2 knows no HRANDFIELD, and keeps them until somebody lists.)
local function sweep(size)
  local sample = redis.pcall('HRANDFIELD', KEYS[1], 16 + 16 * size)
  for _, field in ipairs(sample.err and {} or sample) do
    if string.sub(field, 1, 1) == ':' and call('EXISTS', PREFIX .. string.sub(field, 2)) == 0 then call('HDEL', KEYS[1], field) end
  end
end
