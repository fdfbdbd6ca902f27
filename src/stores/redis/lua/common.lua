-- common.lua   what the scripts share. A script includes it behind its fast path.
--
-- Format 1. Every name below begins with the prefix and `leasehold:1:`, so that another format is another set of keys: a
-- process of another version sees the plain key, and takes its holder for a foreign one.
-- For all keys of one kind (and slot of a cluster), expiring a day after its last use:
--   held:<kind>  hash     '' → the last token
--                         plain → token:content of plain     the last grant, and so the token of the present holder; MARK behind
--                         it: a renewal has more to do than to prolong the plain key
--                         plain\0 → the state of the key, if there is more to it than the plain key: see `writeState`
-- Of each key, all in one slot, none without an expiry:
--   plain               string  the owner of an exclusive lease, or SHARED..token while several hold; there while it is held
--   …:metadata          string  token:flags:value of an exclusive lease that is announced or has a value
--   …:shares            hash    =owner → weight:capacity:token:flags:value of each share; total; marker = content of plain
--   …:expirations       zset    owners of shares, by the time at which their lease ends
--   …:queue             zset    waiters, by arrival
--   …:queue-expirations zset    waiters, by the time at which their queue entry ends
--   …:waiters           hash    owner → weight:capacity:ttlMs:queueMs:subscriber:flags:value of each waiter
--   …:events            channel changes of announced leases, for all who watch the key
--   …:events:<subscriber> channel  grants to the waiters of that subscriber
-- Of each process that has a grant inbox:
--   inbox:<subscriber>  list    token (16 digits) end (13 digits) + or - (whether TOKENS are reserved) owner \0 plain, of each
--                               grant; token 0: the first in the queue may ask
-- revoked: channel, plain \0 and then per lease: token (16 digits, 0: unknown) owner \0
-- Flags: a announced, v there is a value, s steal, t reserve TOKENS tokens. Times are the server's, in milliseconds.
local call = redis.call
-- Lua 5.1 on Redis and Valkey; later versions moved it.
local unpack = unpack or table.unpack
local PUBLISH = 'PUBLISH'
local ALL = 2147483647
local DAY = 86400000
local HOUR = 3600000
-- INBOX_MS: how long an inbox whose process died stays. Each message carries its own end, so this only bounds the memory.
local INBOX_MS = 60000
local SHARED = 'leasehold:shared:'
-- TOKENS: how many tokens a grant reserves if it is asked to, for locks that are passed on inside a process: the token of the grant
-- and those behind it. At 31,000 such grants a second, far beyond what a server decides, they would overtake its clock.
local TOKENS = 32
-- MARK: ends the entry of an exclusive lease that has metadata, or whose hand-off is not finished. So a renewal that finds the entry
-- without it need not read the state.
local MARK = '\0'
-- SIDE_KEYS: how many side keys a plain key has, for servers that want them declared behind the plain keys: keys.ts
local SIDE_KEYS = 6
-- Waiters that one script may still grant the key to, at about ten commands each: a script must not keep the server busy for
-- more than a millisecond or two.
local budget = 100
-- PRUNE: expired shares or queue entries that one script drops for one key, for the same reason.
local PRUNE = 200

local index = KEYS[1]
local lead, rest = string.match(index, '^(.*)leasehold:1:held:(.*)$')
local cluster = string.match(rest, '^{[^}]*}')
local clock = call('TIME')
local micros = clock[1] * 1000000 + clock[2]
local now = math.floor(micros / 1000)
-- The last token of the index, as of now.
local newest = 0

local function whole(number)
  return string.format('%.0f', number)
end

-- The one string that goes back for an item that failed; the others of the batch are answered all the same.
local function failure(reason)
  return '!' .. (type(reason) == 'table' and reason.err or tostring(reason))
end

-- Some keys of this name are here and others are not: its slot is moving. To decide by what is here would report leases lost
-- that are not, and to create what is missing would make MIGRATE fail (BUSYKEY).
local function moving()
  error({ err = 'TRYAGAIN the keys of this name are on their way to another node' })
end

-- The answer for a lease that is not here, with a write that has no effect. On a replica that write fails, as it must: what a
-- replica does not know of is not gone for certain.
local function gone()
  call('HDEL', index, '\0')
  return 0
end

-- What the names of all that belongs to a plain key begin with, in its slot. The same rule in TypeScript: keys.ts
local function baseOf(plain)
  local open = string.find(plain, '{', 1, true)
  local close = open and string.find(plain, '}', open, true)
  if close and close > open + 1 then return lead .. 'leasehold:1:' .. plain .. ':' end
  if cluster and string.find(plain, '}', 1, true) then return lead .. 'leasehold:1:' .. cluster .. plain .. ':' end
  return lead .. 'leasehold:1:{' .. plain .. '}:'
end

local function keyOf(plain)
  local base = baseOf(plain)
  return {
    plain = plain, stateField = plain .. '\0', metadata = base .. 'metadata', shares = base .. 'shares',
    expirations = base .. 'expirations', queue = base .. 'queue', queueExpirations = base .. 'queue-expirations',
    waiters = base .. 'waiters', events = base .. 'events',
  }
end

local function tell(key, event)
  call(PUBLISH, key.events, event)
end

-- Where grants to a subscriber are sent: > a list, # a channel
local function addressOf(key, subscriber)
  if string.sub(subscriber, 1, 1) == 'm' then return '>' .. lead .. 'leasehold:1:inbox:' .. subscriber end
  return '#' .. key.events .. ':' .. subscriber
end

local function digits(token)
  return string.sub('0000000000000000' .. token, -16)
end

local function send(key, waiter, token, ends)
  local how, address = string.match(addressOf(key, waiter.subscriber), '^(.)(.*)$')
  local message = digits(token) .. string.format('%013.0f', ends) .. (waiter.reserve and '+' or '-') .. waiter.owner .. '\0' .. key.plain
  if how == '#' then return call(PUBLISH, address, 'granted ' .. message) end
  call('RPUSH', address, message)
  call('PEXPIRE', address, whole(math.max(ends - now, INBOX_MS)))
end

-- Keeps the index alive for longer than every lease in it. Checked every ten thousand seconds, or for leases of more than half
-- a day: each check is a command.
local function keepIndex(last, token, ttl)
  if ttl < DAY / 2 and math.floor(last / 1e10) == math.floor(token / 1e10) then return end
  local wanted = math.max(DAY, ttl) + 4 * HOUR
  if call('PTTL', index) < wanted then call('PEXPIRE', index, whole(wanted)) end
end

-- A token larger than every token before it, also if the clock went back; by the clock, if the index was lost. `field` and
-- `value` are written with it. reserve: nobody gets those behind it either.
local function mint(ttl, field, value, reserve)
  local last = newest
  newest = math.max(last + 1, micros)
  local token = whole(newest)
  if reserve then newest = newest + TOKENS - 1 end
  if field then call('HSET', index, '', whole(newest), field, token .. ':' .. (value or SHARED .. token))
  else call('HSET', index, '', token) end
  keepIndex(last, newest, ttl)
  return token
end

local function flagsOf(claim)
  return (claim.announce and 'a' or '') .. (claim.value and 'v' or '')
end

-- The token and the owner of an entry.
local function readEntry(entry)
  return string.match(entry or '', '^(%d+):([^%z]*)')
end

-- What the plain key holds, as text; true behind it if it is a key of another type.
local function content(plain)
  local value = redis.pcall('GET', plain)
  if type(value) ~= 'table' then return value end
  if string.find(value.err, 'WRONGTYPE', 1, true) then return '(' .. call('TYPE', plain).ok .. ')', true end
  error(value)
end

-- The metadata of an exclusive lease: whether it is announced, and its value.
local function metadataOf(key, token)
  if not key.hasMetadata or not token then return false, false end
  local text = call('GET', key.metadata)
  if not text and cluster then moving() end
  local of, flags, value = string.match(text or '', '^(%d+):(%a*):(.*)$')
  if of ~= token then return false, false end
  return string.find(flags, 'a', 1, true) ~= nil, string.find(flags, 'v', 1, true) and value
end

local function writeMetadata(key, claim, token, ttl)
  if not claim.announce and not claim.value then return end
  call('SET', key.metadata, token .. ':' .. flagsOf(claim) .. ':' .. (claim.value or ''), 'PX', whole(ttl))
  key.hasMetadata = true
  if not key.entry or string.sub(key.entry, -1) == MARK then return end
  key.entry = key.entry .. MARK
  call('HSET', index, key.plain, key.entry)
end

local function unpackShare(entry)
  local weight, capacity, token, flags, value = string.match(entry, '^(%d+):(%d+):(%d+):(%a*):(.*)$')
  return {
    weight = tonumber(weight), capacity = capacity, token = token,
    announce = string.find(flags, 'a', 1, true) ~= nil, value = string.find(flags, 'v', 1, true) and value,
  }
end

-- Side keys are named only where they may exist: while a slot moves, a missing key is an error to its old node.
-- One at a time: while a slot moves, its new node refuses several keys of which one is missing.
local function deleteLease(key, held)
  call('DEL', key.plain)
  if held.total or held.lost then
    call('UNLINK', key.shares)
    call('UNLINK', key.expirations)
  end
  if key.hasMetadata then call('DEL', key.metadata) end
  call('HDEL', index, key.plain)
  key.entry, key.hasMetadata = nil, false
end

-- Lets the plain key and the books of its shares expire together with the longest share.
local function fitExpiry(key)
  local last = call('ZRANGE', key.expirations, -1, -1, 'WITHSCORES')[2]
  local left = whole(math.max(last - now, 1))
  for _, name in ipairs({ key.plain, key.shares, key.expirations }) do call('PEXPIRE', name, left) end
end

-- Removes one share from the books and returns it. The caller then deletes the lease, or fits the expiry.
local function dropShare(key, owner)
  local entry = call('HGET', key.shares, '=' .. owner)
  call('ZREM', key.expirations, owner)
  if not entry then return { weight = 0 } end
  local share = unpackShare(entry)
  call('HDEL', key.shares, '=' .. owner)
  call('HINCRBY', key.shares, 'total', -share.weight)
  if share.announce then tell(key, 'changed') end
  return share
end

-- Drops expired shares, and returns who holds the key: nil | { owner, token } | { owner, foreign } | { total, marker }
-- lost: it is shared, but the books of its shares are not here
local function pruneHolders(key)
  local owner, odd = content(key.plain)
  if not owner then return nil end
  if odd or string.sub(owner, 1, #SHARED) ~= SHARED then
    local token, known = readEntry(key.entry)
    if odd or known ~= owner then return { owner = owner, foreign = true } end
    return { owner = owner, token = token }
  end
  local books = call('HMGET', key.shares, 'marker', 'total')
  if books[1] ~= owner then return { owner = owner, foreign = true, lost = true } end
  local total = tonumber(books[2])
  for _, ended in ipairs(call('ZRANGEBYSCORE', key.expirations, '-inf', now, 'LIMIT', 0, PRUNE)) do
    total = total - dropShare(key, ended).weight
  end
  local held = { total = total, marker = owner }
  if total > 0 then return held end
  deleteLease(key, held)
  return nil
end

local function fits(held, claim)
  if not held then return claim.weight <= claim.capacity end
  return held.total ~= nil and held.total + claim.weight <= claim.capacity
end

-- Returns what then holds the key.
local function grantShare(key, claim, held, ttl)
  local token = mint(ttl, not held and key.plain)
  local marker = held and held.marker or SHARED .. token
  if not held then
    -- Books that an accidental DEL of the plain key left behind would count the old shares with the new.
    call('UNLINK', key.shares)
    call('UNLINK', key.expirations)
    call('SET', key.plain, marker, 'PX', whole(ttl))
    key.entry = token .. ':' .. marker
  end
  local entry = table.concat({ claim.weight, claim.capacity, token, flagsOf(claim), claim.value or '' }, ':')
  local total = (held and held.total or 0) + claim.weight
  call('HSET', key.shares, 'marker', marker, 'total', total, '=' .. claim.owner, entry)
  call('ZADD', key.expirations, whole(now + ttl), claim.owner)
  if not held or call('PTTL', key.plain) < ttl then fitExpiry(key) end
  return token, { total = total, marker = marker }
end

-- Grants what nobody is in the way of (any more). Returns the token, and what then holds the key.
local function grant(key, claim, held, ttl)
  local token
  if claim.weight == ALL then
    call('SET', key.plain, claim.owner, 'PX', whole(ttl))
    local known = claim.owner .. ((claim.announce or claim.value) and MARK or '')
    token = mint(ttl, key.plain, known, claim.reserve)
    key.entry = token .. ':' .. known
    if key.hasMetadata then call('DEL', key.metadata) end
    key.hasMetadata = false
    writeMetadata(key, claim, token, ttl)
    held = { owner = claim.owner, token = token }
  else
    token, held = grantShare(key, claim, held, ttl)
  end
  if claim.announce then tell(key, 'changed') end
  return token, held
end

-- Ends every lease of the key, foreign ones too, and tells every process that listens which they were. Returns the shares, as
-- they are written: owner, when it would have ended, entry, and so on. What can be read by the caller is not read here: this is
-- one step, however many share.
local function evict(key, held)
  local announced = metadataOf(key, held.token)
  local page, shares = {}, {}
  local function publish()
    if #page > 0 then call('PUBLISH', lead .. 'leasehold:1:revoked', key.plain .. '\0' .. table.concat(page)) end
    page = {}
  end
  if held.total then
    local ends = call('ZRANGE', key.expirations, 0, -1, 'WITHSCORES')
    for from = 1, #ends, 2 * PRUNE do
      local fields = {}
      for i = from, math.min(from + 2 * PRUNE - 1, #ends), 2 do fields[#fields + 1] = '=' .. ends[i] end
      for i, entry in ipairs(call('HMGET', key.shares, unpack(fields))) do
        local at = from + 2 * i - 2
        local token, flags = string.match(entry or '', '^%d+:%d+:(%d+):(%a*):')
        announced = announced or flags and string.find(flags, 'a', 1, true)
        page[i] = digits(token or '') .. ends[at] .. '\0'
        local n = #shares
        shares[n + 1], shares[n + 2], shares[n + 3] = ends[at], ends[at + 1], entry
      end
      publish()
    end
  else
    page[1] = digits(held.token or '') .. held.owner .. '\0'
    publish()
  end
  deleteLease(key, held)
  if announced then tell(key, 'changed') end
  return shares
end

local function leaveQueue(key, owner)
  if call('ZREM', key.queue, owner) == 0 then return false end
  call('ZREM', key.queueExpirations, owner)
  call('HDEL', key.waiters, owner)
  return true
end

-- Drops queue entries that were not renewed in time; returns the first waiter, and whether any were dropped.
local function pruneQueue(key)
  if not key.queued then return nil end
  local silent = call('ZRANGEBYSCORE', key.queueExpirations, '-inf', now, 'LIMIT', 0, PRUNE)
  for _, owner in ipairs(silent) do leaveQueue(key, owner) end
  local first = call('ZRANGE', key.queue, 0, 0)[1]
  -- More of them than are dropped at a time: look at those in front.
  while #silent == PRUNE and first and (tonumber(call('ZSCORE', key.queueExpirations, first)) or 0) <= now do
    leaveQueue(key, first)
    first = call('ZRANGE', key.queue, 0, 0)[1]
  end
  return first, #silent > 0
end

local function waiterOf(key, owner)
  local weight, capacity, ttl, queueMs, subscriber, flags, value =
    string.match(call('HGET', key.waiters, owner) or '', '^(%d+):(%d+):(%d+):(%d+):(%w*):(%a*):(.*)$')
  if not weight then return nil end
  return {
    owner = owner, weight = tonumber(weight), capacity = tonumber(capacity), ttl = tonumber(ttl), queueMs = tonumber(queueMs),
    subscriber = subscriber, announce = string.find(flags, 'a', 1, true) ~= nil,
    value = string.find(flags, 'v', 1, true) and value, reserve = weight == '2147483647' and string.find(flags, 't', 1, true) ~= nil,
  }
end

-- Hands the lease to the first waiter while there is room: no second request, no race with newcomers. Provisionally, for as long
-- as a queue entry lasts: a waiter that died must not block the others for a whole ttl. Stops before the waiter that is asking
-- right now, which gets its whole ttl. A waiter for which the budget does not suffice is told to ask. first: the first waiter.
-- Returns what then holds the key, and who is first then.
local function serve(key, held, first, before)
  while first and first ~= before do
    local waiter = waiterOf(key, first)
    if waiter then
      if not fits(held, waiter) then break end
      if budget == 0 then
        send(key, waiter, 0, now)
        break
      end
      budget = budget - 1
      local ttl, token = math.min(waiter.queueMs, waiter.ttl)
      token, held = grant(key, waiter, held, ttl)
      send(key, waiter, token, now + ttl)
    end
    leaveQueue(key, first)
    first = call('ZRANGE', key.queue, 0, 0)[1]
  end
  return held, first
end

-- Caches in the index what the next script has to know of a key, its successor above all: kind, m or - (there is metadata),
-- until when its queue exists (13 digits).
--   n  metadata only
--   q  a queue
--   s  a queue whose first waiter wants the key alone, without metadata, and gets it from its present holder; then: until when
--      that waiter waits (13 digits), ttlMs (behind it + if TOKENS are to be reserved) ' ' address \0 holder
--      \0 owner \0 plain
--      The fast path of a release hands the key on with these.
--   h  a queue whose first waiter was handed the key by that fast path: it does not wait any more
-- Nothing is cached if there is neither queue nor metadata: only then the plain key alone says it all.
local function writeState(key)
  local first = key.queued and call('ZRANGE', key.queue, 0, 0)[1]
  key.queued = first and true or false
  local metadata = key.hasMetadata and 'm' or '-'
  local state = key.hasMetadata and 'nm0000000000000' or nil
  if first then
    local till = string.format('%013.0f', now + math.max(call('PTTL', key.queue), 1))
    local ttl, queueMs, subscriber, reserve =
      string.match(call('HGET', key.waiters, first) or '', '^2147483647:2147483647:(%d+):(%d+):(%w+):(t?):$')
    local holder, odd
    if ttl and not key.hasMetadata then holder, odd = content(key.plain) end
    state = 'q' .. metadata .. till
    -- Not from a foreign holder: its release is none of ours, and nobody knows when it comes.
    local _, known = readEntry(key.entry)
    if holder and not odd and known == holder and string.sub(holder, 1, #SHARED) ~= SHARED then
      local waits = string.format('%013.0f', call('ZSCORE', key.queueExpirations, first) or 0)
      state = 's' .. metadata .. till .. waits .. whole(math.min(ttl, queueMs)) .. (reserve == 't' and '+ ' or ' ') .. addressOf(key, subscriber) ..
        '\0' .. holder .. '\0' .. first .. '\0' .. key.plain
    end
  end
  if state and state ~= key.state then call('HSET', index, key.stateField, state) end
  if key.state and not state then call('HDEL', index, key.stateField) end
  -- An index that this call made gets its expiry here, and a token that is not granted to anybody.
  if state and newest == 0 then mint(0) end
  key.state = state
end

-- Finishes a hand-off of the fast path of release.lua, which leaves the successor's queue entry where it is.
local function finishHandoff(key)
  local token, owner = readEntry(key.entry)
  if owner then
    leaveQueue(key, owner)
    key.entry = token .. ':' .. owner
    call('HSET', index, key.plain, key.entry)
  end
  writeState(key)
end

-- A key with what the index knows of it, once a hand-off that is not finished has been.
local function prepareKey(plain)
  local key = keyOf(plain)
  local known = call('HMGET', index, '', plain, key.stateField)
  newest = tonumber(known[1]) or 0
  key.entry, key.state = known[2] or nil, known[3] or nil
  -- The index was lost: the side keys tell.
  if not known[1] then
    key.queued = call('EXISTS', key.queue) == 1
    key.hasMetadata = call('EXISTS', key.metadata) == 1
    -- Its holder may have been handed the key by the fast path of release.lua, and is then still in the queue.
    if key.queued then leaveQueue(key, content(key.plain) or '') end
    if key.queued or key.hasMetadata then writeState(key) end
  end
  if not key.state or not known[3] then return key end
  local kind, metadata, till = string.match(key.state, '^(.)(.)(%d%d%d%d%d%d%d%d%d%d%d%d%d)')
  key.queued, key.hasMetadata, key.till = kind ~= 'n', metadata == 'm', tonumber(till)
  if key.queued and cluster and tonumber(till) > now and call('EXISTS', key.queue) == 0 then moving() end
  if kind == 'h' then finishHandoff(key) end
  return key
end
