-- renew.lua   KEYS index, then per lease: plain (then all side keys, or none)      ARGV per lease: owner token ttlMs what
-- token: '' if it is not known      what: '' | =value to be kept from now on | ? keep the queue entry instead of a grant
-- → per lease: 1 ours | 0 gone | '!error'; of a queue entry: [1, newest, now] waiting | [1, newest, now, blockedMs] waiting as
-- the first (blockedMs: 0, it would be granted now; false, nobody knows) | [2, token, now, ttlMs] granted | 0 gone | '!error'
-- (a lone answer is not in a list)
local count = #ARGV / 4
if count < 1 or count % 1 ~= 0 or #KEYS < count + 1 then
  return redis.error_reply('ERR leasehold: renew was called with ' .. #KEYS .. ' keys and ' .. #ARGV .. ' arguments')
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
  local key = open(plain)
  local held = standing(key)
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

-- Keys whose queue entries are renewed, each looked at once for all of them.
local queues = {}

local function queueOf(plain, ttl)
  local key = queues[plain]
  if key then return key end
  key = open(plain)
  queues[plain] = key
  if not key.queued then return key end
  -- If some were dropped, who is next may be another than is written down for the release.
  key.first, key.stale = head(key)
  if (key.till or 0) - now < ttl * 1.5 then
    for _, name in ipairs({ key.queue, key.queueExpirations, key.waiters }) do call('PEXPIRE', name, whole(ttl * 3)) end
    key.till, key.stale = now + ttl * 3, true
  end
  return key
end

-- When the first in the queue could be granted the key, should nobody tell: a foreign holder never does.
local function blockedMs(key, first)
  local held = standing(key)
  -- With a successor written down, its waiter wants the key alone.
  local alone = held and not key.stale and string.sub(key.state or '', 1, 1) == 's'
  local waiter = not alone and waiterOf(key, first)
  if not alone and (not waiter or fits(held, waiter)) then return 0 end
  if held.foreign then return false end
  if not held.total then return call('PTTL', key.plain) end
  return whole(math.max(call('ZRANGE', key.expirations, 0, 0, 'WITHSCORES')[2] - now, 0))
end

-- The release hands the key only to a successor that still waits, as far as is written down: so write down that it does.
local function keepSuccessor(key, ttl)
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
      keepSuccessor(key, ttl)
      return { 1, whole(newest), whole(micros), blocked }
    end
  end
  local held = standing(key)
  if held and held.lost then moving() end
  local entry = held and held.total and call('HGET', key.shares, '=' .. owner)
  if entry then
    return { 2, unpackShare(entry).token, whole(micros), whole(call('ZSCORE', key.expirations, owner) - now) }
  end
  if not held or held.owner ~= owner or not held.token then return gone() end
  return { 2, held.token, whole(micros), call('PTTL', plain) }
end

local function renew(i)
  local plain, owner, token, ttl, what = KEYS[i + 1], ARGV[4 * i - 3], ARGV[4 * i - 2], tonumber(ARGV[4 * i - 1]), ARGV[4 * i]
  if what == '?' then return renewQueued(plain, owner, ttl) end
  return renewGrant(plain, owner, token, ttl, what ~= '' and string.sub(what, 2))
end

local answers, longest = {}, DAY
for i = 1, count do
  local ok, answer = pcall(renew, i)
  answers[i] = ok and answer or failure(answer)
  longest = math.max(longest, tonumber(ARGV[4 * i - 1]))
end
for _, key in pairs(queues) do
  if key.stale then pcall(writeState, key) end
end
-- Leases that are renewed for days without a new one among them must not outlive the index.
local left = redis.pcall('PTTL', index)
if type(left) == 'number' and left >= 0 and left < longest + HOUR then
  redis.pcall('PEXPIRE', index, whole(longest + 4 * HOUR))
end
return count == 1 and answers[1] or answers
