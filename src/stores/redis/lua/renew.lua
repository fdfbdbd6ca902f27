-- renew.lua   KEYS index, then per item: plain (then all side keys, or none)
-- ARGV ttlMs, then per lease: token:owner (all want this ttl and nothing else); or ?ttlMs, then per queue entry: owner (the same
-- for queue entries); or '', then per item: token:owner ttlMs what
-- token: '' if it is not known      what: '' | =value to be kept from now on | ? keep the queue entry instead of a grant
-- → per lease: 1 ours | 0 gone | '!error'; of a queue entry: [1, newest, now] waiting | [1, newest, now, blockedMs] waiting as
-- the first (blockedMs: 0, it would be granted now; false, nobody knows) | [2, token, now, ttlMs] granted | 0 gone | '!error'
-- (a lone answer is not in a list; 1 for several leases: all are ours)
-- → for ?ttlMs: always a list, in it -2 for an entry that is gone, and blockedMs itself for the first (-1: nobody knows); newest and
-- now behind the answers of all
local form = string.sub(ARGV[1], 1, 1)
local uniform, entries = form ~= '', form == '?'
local width = uniform and 1 or 3
local count = (#ARGV - 1) / width
if count < 1 or count % 1 ~= 0 or #KEYS < count + 1 or not (entries or string.find(ARGV[2], ':', 1, true)) then
  return redis.error_reply('ERR leasehold: renew was called with ' .. #KEYS .. ' keys and ' .. #ARGV .. ' arguments')
end
local commonTtl = uniform and string.sub(ARGV[1], entries and 2 or 1)

local FAST = true
local unpack = unpack or table.unpack
local answers, left = {}, count

-- What all plain keys hold, and what the index says: known[1] the last token, known[i + 1] the i-th field. Nothing if that cannot be
-- told for all of them, or the index was lost.
local function readAll(...)
  local held, known = redis.pcall('MGET', unpack(KEYS, 2, count + 1)), redis.pcall('HMGET', KEYS[1], '', ...)
  if known[1] and not held.err then return held, known end
end

-- FAST PATH of grants: exclusive leases without metadata, of less than three hours, whether anybody waits for them or not. Their
-- entries have no MARK (common.lua), and so equal what the holder sends. One command for each, and three for all. GT never
-- shortens. It does nothing for a key without an expiry, which the slow path corrects, and fails before Redis 7.
if FAST and not entries then
  local try, find, held, known = redis.pcall, string.find, readAll(unpack(KEYS, 2, count + 1))
  local ttl, what = commonTtl, ''
  for i = 1, held and count or 0 do
    local at = width * i - width + 2
    local entry = ARGV[at]
    if not uniform then ttl, what = ARGV[at + 1], ARGV[at + 2] end
    local holder, simple = held[i], known[i + 1] == entry and what == '' and #ttl < 8
    -- The holder is the owner of the entry, behind a token of 16 digits and a colon. Another length takes the slow path.
    if simple and holder and #entry - #holder == 17 and find(entry, holder, 18, true) then
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

-- Prolongs a queue that would soon expire, if the successor is alone in it. Of others, some may have fallen silent: the slow path drops
-- their entries.
local function prolongLoneQueue(plain, name, ttl)
  if redis.pcall('ZCARD', name) ~= 1 then return false end
  local base = baseOf(plain)
  for _, each in ipairs({ base .. 'queue', name, base .. 'waiters' }) do
    if redis.pcall('PEXPIRE', each, whole(ttl * 10)) ~= 1 then return false end
  end
  return true
end

-- FAST PATH of queue entries: the waiter that is cached as the successor of the present holder (state s: see `writeState`). Two
-- commands for each, and three for all. Times of thirteen digits compare as text.
local function renewSuccessors()
  local fields = {}
  for i = 1, count do fields[i] = KEYS[i + 1] .. '\0' end
  local held, known = readAll(unpack(fields))
  if not held then return end
  newest = tonumber(known[1])
  local find, sub, byte, try = string.find, string.sub, string.byte, redis.pcall
  local states, size, ttl = {}, 0, tonumber(commonTtl)
  local function at(ms) return string.format('%013.0f', ms) end
  local present, soon, ending, long, longest = at(now), at(now + ttl / 2), at(now + ttl), at(now + ttl * 1.5), at(now + ttl * 10)
  local before, behind = lead .. 'leasehold:1:{', '}:queue-expirations'
  for i = 1, count do
    local holder, state = held[i], known[i + 1]
    -- 115: s
    if holder and state and byte(state) == 115 then
      local plain, owner = KEYS[i + 1], ARGV[i + 1]
      local till, waits = sub(state, 3, 15), sub(state, 16, 28)
      local cached = '\0' .. holder .. '\0' .. owner .. '\0' .. plain
      if waits > present and find(state, cached, #state - #cached + 1, true) then
        local name = (cluster or find(plain, '{', 1, true)) and baseOf(plain) .. 'queue-expirations' or before .. plain .. behind
        if till < long then till = prolongLoneQueue(plain, name, ttl) and longest end
        if till and try('ZADD', name, 'XX', 'GT', 'CH', ending, owner) == 1 then
          answers[i] = call('PTTL', plain)
          if waits < soon or till == longest then
            states[size + 1] = plain .. '\0'
            states[size + 2] = sub(state, 1, 2) .. till .. ending .. sub(state, 29)
            size = size + 2
          end
        end
      end
    end
  end
  if size > 0 then call('HSET', index, unpack(states)) end
end

local function renew(i)
  local at = width * i - width + 2
  if entries then
    local answer = renewQueued(KEYS[i + 1], ARGV[at], tonumber(commonTtl))
    return answer == 0 and -2 or answer
  end
  local plain, token, owner = KEYS[i + 1], string.match(ARGV[at], '^(%d*):(.*)$')
  local ttl, what = tonumber(commonTtl or ARGV[at + 1]), uniform and '' or ARGV[at + 2]
  if what == '?' then return renewQueued(plain, owner, ttl) end
  return renewGrant(plain, owner, token, ttl, what ~= '' and string.sub(what, 2))
end

if FAST and entries then renewSuccessors() end
local longest = DAY
for i = 1, count do
  if not answers[i] then
    local ok, answer = pcall(renew, i)
    answers[i] = ok and answer or failure(answer)
  end
  longest = math.max(longest, tonumber(commonTtl or ARGV[3 * i]))
end
for _, key in pairs(queues) do
  if key.stale then pcall(writeState, key) end
end
-- As in the fast path.
local remaining = redis.pcall('PTTL', index)
if type(remaining) == 'number' and remaining >= 0 and remaining < longest + HOUR then
  redis.pcall('PEXPIRE', index, whole(longest + 4 * HOUR))
end
if entries then
  answers[count + 1], answers[count + 2] = whole(newest), whole(micros)
  return answers
end
return count == 1 and answers[1] or answers
