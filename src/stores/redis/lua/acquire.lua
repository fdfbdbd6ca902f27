-- acquire.lua   KEYS index, then per claim: plain (then all side keys, or none)
-- ARGV header, then either ttlMs and per claim: owner (all are exclusive, of one ttl and queueMs, without further wishes),
-- or per claim: owner ttlMs terms
-- header: mode deadline | queueMs : subscriber
-- mode: = one ttl and queueMs for all | + the same for a lone claim that wants TOKENS tokens | - each has its own | * all or none,
-- and nobody is queued
-- deadline: by the server's clock in microseconds; after it nothing is done, and the answer is '@' and the time
-- terms: '' or queueMs for an exclusive claim without further wishes; else weight:capacity:queueMs:flags:value
-- queueMs 0 or none: do not queue      subscriber: where grants to these waiters are sent
-- → per claim: token (behind it + if TOKENS are reserved from it on)
--   | [ahead, newest, now, owner, ttlMs, token, value, foreign] refused | '!error' | '+' not decided: ask again
-- A lone answer is not in a list. One token for several claims: all are granted, with this one and those behind it.
local header = ARGV[1]
local mode = string.sub(header, 1, 1)
local reserving = mode == '+'
local uniform, atomic = mode == '=' or reserving, mode == '*'
local count = uniform and #ARGV - 2 or (#ARGV - 1) / 3
if count < 1 or count > 1000 or count % 1 ~= 0 or #KEYS < count + 1 or not (uniform or atomic or mode == '-') then
  return redis.error_reply('ERR leasehold: acquire was called with ' .. #KEYS .. ' keys and ' .. #ARGV .. ' arguments')
end

local FAST = true
local TOKENS = 32
local call, try = redis.call, redis.pcall
local clock = call('TIME')
local text = clock[1] .. string.sub('00000' .. clock[2], -6)
-- One call in a hundred sweeps the index.
local sweeping = string.sub(text, -2) == '00'

-- The request lay in a buffer or a frozen server, and its process has given up: nobody would know of the grant.
if string.sub(header, 2, #text + 1) < text then return '@' .. text end

-- FAST PATH of a lone claim: exclusive, without further wishes, of a key that nobody holds and nothing else is known of.
-- Decided before the helpers of the slow path are even defined, without arithmetic (times of sixteen digits compare as text)
-- and without a function, each of which would show in the price of a lock.
if FAST and uniform and count == 1 and not sweeping then
  local index, plain, owner = KEYS[1], KEYS[2], ARGV[3]
  local known = try('HMGET', index, '', plain .. '\0')
  local last = known[1]
  -- Without a last token the index is new or was lost: then only the side keys tell whether somebody waits.
  if last and not known[2] and last < text then
    local set = try('SET', plain, owner, 'NX', 'PX', ARGV[2])
    if set and not set.err then
      call('HSET', index, '', reserving and string.format('%.0f', text + TOKENS - 1) or text, plain, text .. ':' .. owner)
      -- The index outlives its last use by a day: prolonged every ten thousand seconds, not every time.
      if string.sub(last, 1, 6) ~= string.sub(text, 1, 6) and call('PTTL', index) < 100800000 then
        call('PEXPIRE', index, 100800000)
      end
      return reserving and text .. '+' or text
    end
  end
end

-- FAST PATH of a batch: one command reads the states of all its keys, and one writes the entries of all that are granted.
local unpack = unpack or table.unpack
local answers, batched = {}, FAST and not atomic and (count > 1 or sweeping)
-- states: what the index says of each key, before this call      slowed: keys of which a claim took the slow path
local states, slowed, last = nil, {}, 0

local function readStates()
  local fields = { '' }
  for i = 1, count do fields[i + 1] = KEYS[i + 1] .. '\0' end
  states = try('HMGET', KEYS[1], unpack(fields))
  -- As above: without a last token only the side keys tell.
  batched = not states.err and states[1] and true
  last = batched and tonumber(states[1])
end

-- Grants the claims from `from` on, up to the first one that is not simple; returns which one that is. newest: the last token,
-- where the slow path may have granted one.
local function grantSimple(from, newest)
  if batched and not states then readStates() end
  if not batched then return from end
  local before, entries, size, at = math.max(last, newest), { '', '' }, 2, from
  last = math.max(before, text - 1)
  while at <= count do
    local plain, owner, ttl = KEYS[at + 1], ARGV[at + 2], ARGV[2]
    if not uniform then
      if string.find(ARGV[3 * at + 1], ':', 1, true) then break end
      owner, ttl = ARGV[3 * at - 1], ARGV[3 * at]
    end
    -- An earlier claim of this call may have left a queue, or a holder that the states do not show.
    if states[at + 1] or slowed[plain] then break end
    local set = try('SET', plain, owner, 'NX', 'PX', ttl)
    if not set or set.err then break end
    last = last + 1
    local token = string.format('%.0f', last)
    entries[size + 1], entries[size + 2], size = plain, token .. ':' .. owner, size + 2
    answers[at], at = token, at + 1
  end
  if at == from then last = before return at end
  entries[2] = answers[at - 1]
  call('HSET', KEYS[1], unpack(entries))
  if math.floor(before / 1e10) ~= math.floor(last / 1e10) and call('PTTL', KEYS[1]) < 100800000 then
    call('PEXPIRE', KEYS[1], 100800000)
  end
  return at
end

local undecided = grantSimple(1, 0)
if undecided > count and not sweeping then return answers[1] end

-- INCLUDE common.lua

-- Claims that one script decides on the slow path, at about twenty commands each: the client asks again for the rest. As many as the calls
-- carry that leave one behind the other (PIPELINED_BATCH): the rest of one would arrive behind the next one, and be queued behind it.
local slow = 32

local queueAll, SUBSCRIBER = string.match(header, '|(%d*):(%w*)$')

local function claimOf(i)
  if uniform then
    return { owner = ARGV[i + 2], ttl = tonumber(ARGV[2]), weight = ALL, capacity = ALL, queueMs = tonumber(queueAll) or 0,
      reserve = reserving }
  end
  local terms = ARGV[3 * i + 1]
  local weight, capacity, queueMs, flags, value = string.match(terms, '^(%d+):(%d+):(%d+):(%a*):(.*)$')
  if not weight then weight, capacity, queueMs, flags, value = ALL, ALL, terms == '' and 0 or terms, '', '' end
  return {
    owner = ARGV[3 * i - 1], ttl = tonumber(ARGV[3 * i]),
    weight = tonumber(weight), capacity = tonumber(capacity), queueMs = tonumber(queueMs),
    announce = string.find(flags, 'a', 1, true) ~= nil, value = string.find(flags, 'v', 1, true) and value,
    steal = string.find(flags, 's', 1, true) ~= nil, reserve = string.find(flags, 't', 1, true) ~= nil,
  }
end

-- The grant that the owner has already, if any: prolonged, never shortened, with the same token and value.
local function prolongOwnGrant(key, claim, held)
  if held.total then
    local entry = call('HGET', key.shares, '=' .. claim.owner)
    if not entry then return nil end
    local ends = math.max(tonumber(call('ZSCORE', key.expirations, claim.owner)), now + claim.ttl)
    call('ZADD', key.expirations, whole(ends), claim.owner)
    fitExpiry(key)
    return unpackShare(entry).token
  end
  if held.owner ~= claim.owner then return nil end
  local left = call('PTTL', key.plain)
  -- The index was lost and the lease was not: it gets a token anew, larger than the one it had, and keeps its value.
  if held.foreign then
    local flags, value = string.match(key.hasMetadata and call('GET', key.metadata) or '', '^%d+:(%a*):(.*)$')
    local announce = flags and string.find(flags, 'a', 1, true) ~= nil
    local kept = flags and string.find(flags, 'v', 1, true) and value
    local same = { owner = claim.owner, weight = ALL, capacity = ALL, announce = announce or claim.announce, value = kept or claim.value }
    local token = grant(key, same, nil, math.max(left, claim.ttl))
    writeState(key)
    return token
  end
  if left < claim.ttl then
    call('PEXPIRE', key.plain, whole(claim.ttl))
    if key.hasMetadata then call('PEXPIRE', key.metadata, whole(claim.ttl)) end
    keepIndex(micros, micros, claim.ttl)
  end
  return held.token
end

local function enqueue(key, claim, held)
  if call('ZADD', key.queueExpirations, whole(now + claim.queueMs), claim.owner) == 1 then
    local last = tonumber(call('ZRANGE', key.queue, -1, -1, 'WITHSCORES')[2]) or 0
    -- The index was lost and forgot this queue. A hand-off of the fast path may have left the entry of its holder in it, and waiters
    -- may have fallen silent: they are not ahead.
    if last > 0 and not key.queued then
      key.queued = true
      if held then leaveQueue(key, held.owner or '') end
      pruneQueue(key)
    end
    call('ZADD', key.queue, whole(math.max(last + 1, micros)), claim.owner)
  end
  -- Written each time: after a reconnect the subscriber is another, and a grant sent to the old one would be lost.
  local wants = { claim.weight, claim.capacity, whole(claim.ttl), whole(claim.queueMs), SUBSCRIBER, flagsOf(claim) }
  local value = (claim.reserve and 't:' or ':') .. (claim.value or '')
  call('HSET', key.waiters, claim.owner, table.concat(wants, ':') .. value)
  -- Longer than the entry itself, so that the next entries need not prolong them.
  if call('PTTL', key.queue) < claim.queueMs * 1.5 then
    for _, name in ipairs({ key.queue, key.queueExpirations, key.waiters }) do call('PEXPIRE', name, whole(claim.queueMs * 3)) end
  end
  key.queued = true
end

local function refuse(key, claim, held)
  local ahead = key.queued and (call('ZRANK', key.queue, claim.owner) or call('ZCARD', key.queue)) or 0
  local seen = { ahead, whole(newest), whole(micros) }
  if not held then return seen end
  if held.total then
    local first = call('ZRANGE', key.expirations, 0, 0, 'WITHSCORES')
    local one = unpackShare(call('HGET', key.shares, '=' .. first[1]))
    seen[4], seen[5], seen[6], seen[7], seen[8] = first[1], whole(math.max(first[2] - now, 0)), one.token, one.value, 0
    return seen
  end
  local _, value = metadataOf(key, held.token)
  seen[4], seen[5], seen[6], seen[7] = held.owner, call('PTTL', key.plain), held.token or false, value
  seen[8] = held.foreign and 1 or 0
  return seen
end

-- A lease that ran out notifies no waiter: so the next script that asks grants the key to all earlier waiters that fit. Not
-- before a steal, which would take it away again at once. Returns who holds the key and who is first in the queue then.
local function serveEarlier(key, claim, held)
  local first = pruneQueue(key)
  if not first or first == claim.owner or claim.steal then return held, first end
  return serve(key, held, first, claim.owner)
end

-- The rule, for one claim.
local function decide(plain, claim)
  local key = prepareKey(plain)
  local held, first = pruneHolders(key)
  local token = held and prolongOwnGrant(key, claim, held)
  if token then return token end
  held, first = serveEarlier(key, claim, held)
  if claim.steal and held then
    evict(key, held)
    held = nil
  end
  if claim.steal or ((not first or first == claim.owner) and fits(held, claim)) then
    if key.queued then leaveQueue(key, claim.owner) end
    token, held = grant(key, claim, held, claim.ttl)
    -- Further shares that fit need not ask one by one. The claim is granted, whether this works or not.
    if first and claim.weight < ALL then pcall(serve, key, held, pruneQueue(key)) end
    writeState(key)
    return claim.reserve and claim.weight == ALL and token .. '+' or token
  end
  if claim.queueMs > 0 and not atomic then enqueue(key, claim, held) end
  if key.queued then writeState(key) end
  return refuse(key, claim, held)
end

-- taken: what earlier claims of the same call want of this key.
local function admits(key, claim, taken)
  local held, first = pruneHolders(key)
  if claim.steal then return true end
  if held and held.owner == claim.owner then return true end
  if held and held.total and call('HEXISTS', key.shares, '=' .. claim.owner) == 1 then return true end
  held, first = serveEarlier(key, claim, held)
  if first and first ~= claim.owner then return false end
  return fits(held, claim) and (held and held.total or 0) + taken + claim.weight <= claim.capacity
end

-- Leases that expired stay in the index until a script looks at them. One call in a hundred looks at some, and at more as long
-- as many turn out dead: so dead entries stay a fraction of the live ones.
local function sweep()
  for _ = 1, 64 do
    local dead = 0
    for _, field in ipairs(call('HRANDFIELD', index, 8)) do
      local plain = string.match(field, '^[^%z]+')
      -- That there is a queue is not forgotten while the lock is held: its entries may be on their way, with a slot that moves.
      local key = plain and plain ~= field and keyOf(plain)
      local alive = not plain or call('EXISTS', plain) == 1
      if not alive and key then alive = call('EXISTS', key.queue) == 1 or call('EXISTS', key.metadata) == 1 end
      if not alive then dead = dead + call('HDEL', index, field) end
    end
    if dead < 2 then return end
  end
end

-- most: how many of them may take the slow path.
local function decideEach(from, most)
  local i = from
  while i <= count do
    if most == 0 then
      answers[i] = '+'
      i = i + 1
    else
      local ok, answer = pcall(decide, KEYS[i + 1], claimOf(i))
      answers[i] = ok and answer or failure(answer)
      slowed[KEYS[i + 1]] = true
      most = most - 1
      i = most == 0 and i + 1 or grantSimple(i + 1, newest)
    end
  end
end

local function decideTogether()
  local taken, possible = {}, true
  for i = 1, count do
    local plain, claim = KEYS[i + 1], claimOf(i)
    possible = possible and admits(prepareKey(plain), claim, taken[plain] or 0)
    taken[plain] = (taken[plain] or 0) + claim.weight
  end
  if possible then return decideEach(1, -1) end
  for i = 1, count do
    local key = prepareKey(KEYS[i + 1])
    -- Earlier waiters may have been granted the key, and others may have fallen silent: they are not ahead.
    pruneQueue(key)
    if key.queued then writeState(key) end
    answers[i] = refuse(key, claimOf(i), pruneHolders(key))
  end
end

if atomic then decideTogether() else decideEach(undecided, slow) end
if sweeping then pcall(sweep) end
return count == 1 and answers[1] or answers
