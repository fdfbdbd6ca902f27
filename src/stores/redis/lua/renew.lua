-- renew.lua   KEYS index, then per lease: plain (then all side keys, or none)
-- ARGV ttlMs, then per lease: token:owner (all want this ttl and nothing else); or '', then per lease: token:owner ttlMs what
-- token: '' if it is not known      what: '' | =value to be kept from now on | ? keep the queue entry instead of a grant
-- → per lease: 1 ours | 0 gone | '!error'; of a queue entry: [1, newest, now] waiting | [1, newest, now, blockedMs] waiting as
-- the first (blockedMs: 0, it would be granted now; false, nobody knows) | 'w' blockedMs, the same, with newest and now behind
-- the answers of all | [2, token, now, ttlMs] granted | 0 gone | '!error'
-- (a lone answer is not in a list; 1 for several leases: all are ours)
local uniform = ARGV[1] ~= ''
local width = uniform and 1 or 3
local count = (#ARGV - 1) / width
if count < 1 or count % 1 ~= 0 or #KEYS < count + 1 or not string.find(ARGV[2], ':', 1, true) then
  return redis.error_reply('ERR leasehold: renew was called with ' .. #KEYS .. ' keys and ' .. #ARGV .. ' arguments')
end

local FAST = true
local unpack = unpack or table.unpack
local answers, left = {}, count

-- What all plain keys hold, and of each of them what the index says: known[1] the last token, known[2 * i] the entry of the i-th
-- and known[2 * i + 1] its state. Nothing if that cannot be told for all of them, or the index was lost.
local function readAll()
  local plains, fields = {}, { '' }
  for i = 1, count do
    local plain = KEYS[i + 1]
    plains[i], fields[2 * i], fields[2 * i + 1] = plain, plain, plain .. '\0'
  end
  local held, known = redis.pcall('MGET', unpack(plains)), redis.pcall('HMGET', KEYS[1], unpack(fields))
  if known[1] and not held.err then return held, known end
end

-- FAST PATH of grants: exclusive leases that nobody waits for, without metadata, of less than three hours. One command for each,
-- and three for all. GT never shortens. It does nothing for a key without an expiry, which the slow path corrects, and fails
-- before Redis 7.
if FAST and (uniform or ARGV[4] ~= '?') then
  local try, held, known = redis.pcall, readAll()
  local ttl, what = ARGV[1], ''
  for i = 1, held and count or 0 do
    local at = width * i - width + 2
    local entry = ARGV[at]
    if not uniform then ttl, what = ARGV[at + 1], ARGV[at + 2] end
    local simple = known[2 * i] == entry and not known[2 * i + 1] and what == '' and #ttl < 8
    if simple and held[i] == string.sub(entry, string.find(entry, ':', 1, true) + 1) then
      local set = try('PEXPIRE', KEYS[i + 1], ttl, 'GT')
      if set == 1 then answers[i], left = 1, left - 1 elseif set ~= 0 then break end
    end
  end
  if left == 0 then
    -- Leases that are renewed for days without a new one among them must not outlive the index.
    local remaining = redis.call('PTTL', KEYS[1])
    if remaining >= 0 and remaining < 90000000 then redis.call('PEXPIRE', KEYS[1], 100800000) end
    return 1
  end
end

-- INCLUDE common.lua

local function renewShare(key, held, owner, token, ttl, value)
  local entry = call('HGET', key.shares, '=' .. owner)
  local one = entry and unpackShare(entry)
  if not one or (token ~= '' and one.token ~= token) then return gone() end
  local ends = math.max(tonumber(call('ZSCORE', key.expirations, owner)), now + ttl)
  call('ZADD', key.expirations, whole(ends), owner)
  fitExpiry(key)
  if value then
    one.value = value
    local anew = table.concat({ one.weight, one.capacity, one.token, flagsOf(one), value }, ':')
    call('HSET', key.shares, '=' .. owner, anew)
    tell(key, 'changed')
  end
  return 1
end

local function renewGrant(plain, owner, token, ttl, value)
  local key = prepareKey(plain)
  local held = pruneHolders(key)
  if held and held.total then return renewShare(key, held, owner, token, ttl, value) end
  if held and held.lost then moving() end
  if not held or held.owner ~= owner or (token ~= '' and held.token and held.token ~= token) then return gone() end
  local left = call('PTTL', plain)
  if left < ttl then
    call('PEXPIRE', plain, whole(ttl))
    if key.hasMetadata then call('PEXPIRE', key.metadata, whole(ttl)) end
  end
  if value then
    local announce = metadataOf(key, held.token)
    writeMetadata(key, { announce = announce, value = value }, held.token or '0', math.max(left, ttl))
    writeState(key)
    tell(key, 'changed')
  end
  return 1
end

-- Keys whose queue entries are renewed: each is prepared once for all of its entries.
local queues = {}

local function queueOf(plain, ttl)
  local key = queues[plain]
  if key then return key end
  key = prepareKey(plain)
  queues[plain] = key
  if not key.queued then return key end
  -- If entries were dropped, the successor may be another than the cached one.
  key.first, key.stale = pruneQueue(key)
  if (key.till or 0) - now < ttl * 1.5 then
    for _, name in ipairs({ key.queue, key.queueExpirations, key.waiters }) do call('PEXPIRE', name, whole(ttl * 10)) end
    key.till, key.stale = now + ttl * 10, true
  end
  return key
end

-- When the first waiter could be granted the key, should no message come: the release of a foreign holder sends none.
local function blockedMs(key, first)
  local held = pruneHolders(key)
  -- A cached successor wants the key alone.
  local alone = held and not key.stale and string.sub(key.state or '', 1, 1) == 's'
  local waiter = not alone and waiterOf(key, first)
  if not alone and (not waiter or fits(held, waiter)) then return 0 end
  if held.foreign then return false end
  if not held.total then return call('PTTL', key.plain) end
  return whole(math.max(call('ZRANGE', key.expirations, 0, 0, 'WITHSCORES')[2] - now, 0))
end

-- Caches that the successor still waits: the fast path of a release hands the key to no other.
local function cacheSuccessorExpiry(key, ttl)
  if key.stale or string.sub(key.state or '', 1, 1) ~= 's' then return end
  if tonumber(string.sub(key.state, 16, 28)) < now + ttl / 2 then
    key.state = string.sub(key.state, 1, 15) .. string.format('%013.0f', now + ttl) .. string.sub(key.state, 29)
    call('HSET', index, key.stateField, key.state)
  end
end

-- One command for each entry, a few more for the first of a queue.
local function renewQueued(plain, owner, ttl)
  local key = queueOf(plain, ttl)
  if key.queued then
    local prolonged = call('ZADD', key.queueExpirations, 'XX', 'GT', 'CH', whole(now + ttl), owner) == 1
    if prolonged or call('ZSCORE', key.queueExpirations, owner) then
      if owner ~= key.first then return { 1, whole(newest), whole(micros) } end
      local blocked = blockedMs(key, owner)
      cacheSuccessorExpiry(key, ttl)
      return { 1, whole(newest), whole(micros), blocked }
    end
  end
  local held = pruneHolders(key)
  if held and held.lost then moving() end
  local entry = held and held.total and call('HGET', key.shares, '=' .. owner)
  if entry then
    return { 2, unpackShare(entry).token, whole(micros), whole(call('ZSCORE', key.expirations, owner) - now) }
  end
  if not held or held.owner ~= owner or not held.token then return gone() end
  return { 2, held.token, whole(micros), call('PTTL', plain) }
end

-- FAST PATH of queue entries: the waiter that is cached as the successor of the present holder (state s: see `writeState`). Two
-- commands for each, and three for all. Where the queue itself would soon expire, the slow path prolongs it, and drops the
-- entries of other waiters that have fallen silent.
local function renewSuccessors()
  local held, known = readAll()
  local states, size, ttl, ending, soon = {}, 0, '', '', ''
  local present = string.format('%013.0f', now)
  for i = 1, held and count or 0 do
    local holder, entry, state = held[i], known[2 * i], known[2 * i + 1]
    if ARGV[3 * i] ~= ttl then
      ttl = ARGV[3 * i]
      ending, soon = string.format('%013.0f', now + ttl), string.format('%013.0f', now + ttl / 2)
    end
    local simple = ARGV[3 * i + 1] == '?' and holder and entry and state and string.sub(state, 1, 1) == 's'
    if simple and string.sub(entry, string.find(entry, ':', 1, true) + 1) == holder then
      local plain, owner = KEYS[i + 1], string.sub(ARGV[3 * i - 1], 2)
      local waits = string.sub(state, 16, 28)
      if string.sub(state, (string.find(state, '\0', 29, true))) == '\0' .. holder .. '\0' .. owner .. '\0' .. plain
        and waits > present and string.sub(state, 3, 15) - now >= ttl * 1.5
        and redis.pcall('ZADD', baseOf(plain) .. 'queue-expirations', 'XX', 'GT', 'CH', ending, owner) == 1 then
        answers[i] = 'w' .. call('PTTL', plain)
        if waits < soon then
          states[size + 1] = plain .. '\0'
          states[size + 2] = string.sub(state, 1, 15) .. ending .. string.sub(state, 29)
          size = size + 2
        end
      end
    end
  end
  if size > 0 then call('HSET', index, unpack(states)) end
  if held then answers[count + 1], answers[count + 2] = known[1], whole(micros) end
end

local function renew(i)
  local at = width * i - width + 2
  local plain, token, owner = KEYS[i + 1], string.match(ARGV[at], '^(%d*):(.*)$')
  local ttl, what = tonumber(uniform and ARGV[1] or ARGV[at + 1]), uniform and '' or ARGV[at + 2]
  if what == '?' then return renewQueued(plain, owner, ttl) end
  return renewGrant(plain, owner, token, ttl, what ~= '' and string.sub(what, 2))
end

if FAST and count > 1 and ARGV[4] == '?' then renewSuccessors() end
local longest = DAY
for i = 1, count do
  if not answers[i] then
    local ok, answer = pcall(renew, i)
    answers[i] = ok and answer or failure(answer)
  end
  longest = math.max(longest, tonumber(uniform and ARGV[1] or ARGV[3 * i]))
end
for _, key in pairs(queues) do
  if key.stale then pcall(writeState, key) end
end
-- As in the fast path.
local remaining = redis.pcall('PTTL', index)
if type(remaining) == 'number' and remaining >= 0 and remaining < longest + HOUR then
  redis.pcall('PEXPIRE', index, whole(longest + 4 * HOUR))
end
return count == 1 and answers[1] or answers
