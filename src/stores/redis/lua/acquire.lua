-- acquire.lua   KEYS index, then per claim: plain (then all side keys, or none)
-- ARGV [*][deadline], then per claim: owner ttlMs terms, then subscriber
-- *: all claims or none, and nobody is queued
-- deadline: by the server's clock in microseconds; after it nothing is done, and the answer is '@' and the time
-- terms: '' or queueMs for an exclusive claim without further wishes; else weight:capacity:queueMs:flags:value
-- queueMs 0 or none: do not queue      subscriber: where whoever asks hears that it was handed the lease
-- → per claim: token | [ahead, newest, now, owner, ttlMs, token, value, foreign] refused | '!error' | '+' not decided: ask
-- again      (a lone answer is not in a list)
local count = (#ARGV - 2) / 3
if count < 1 or count % 1 ~= 0 or #KEYS < count + 1 then
  return redis.error_reply('ERR leasehold: acquire was called with ' .. #KEYS .. ' keys and ' .. #ARGV .. ' arguments')
end

-- FAST PATH: exclusive claims without further wishes, of keys that nobody holds and nothing else is known of. Decided before
-- the helpers of the slow path are even defined, without arithmetic (times of sixteen digits compare as text) and without a
-- function, each of which would show in the price of a lock. Stops at the first claim that is not as simple, or fails: the
-- rest goes the slow path, in its order.
local FAST = true
local call, try = redis.call, redis.pcall
local answers, done = {}, 0
local clock = call('TIME')
local text = clock[1] .. string.sub('00000' .. clock[2], -6)
-- One call in a hundred goes the slow path in any case, and sweeps.
local sweeping = string.sub(text, -2) == '00'

-- It lay in a buffer or a frozen server, and whoever asked has given up: nobody would know that it was granted.
local atomic = string.sub(ARGV[1], 1, 1) == '*'
local deadline = atomic and string.sub(ARGV[1], 2) or ARGV[1]
if deadline ~= '' and deadline < text then return '@' .. text end

if FAST and not atomic then
  local index = KEYS[1]
  for i = 1, count do
    if string.find(ARGV[3 * i + 1], ':', 1, true) then break end
    local plain, owner = KEYS[i + 1], ARGV[3 * i - 1]
    local known = try('HMGET', index, '', plain .. '\0')
    local last = known[1] or ''
    -- Without a last token the index is new or was lost: then only the side keys tell whether somebody waits.
    if known.err or known[2] or last == '' or last >= text then break end
    local set = try('SET', plain, owner, 'NX', 'PX', ARGV[3 * i])
    if not set or set.err then break end
    call('HSET', index, '', text, plain, text .. ':' .. owner)
    -- The index outlives its last use by a day: prolonged every ten thousand seconds, not every time.
    if string.sub(last, 1, 6) ~= string.sub(text, 1, 6) and call('PTTL', index) < 100800000 then
      call('PEXPIRE', index, 100800000)
    end
    answers[i], done = text, i
    if i == count and not sweeping then return count == 1 and text or answers end
    text = string.format('%.0f', text + 1)
  end
end

-- INCLUDE common.lua

-- Claims that one script decides on the slow path, at about twenty commands each: the rest is asked for again.
local slow = 24

local function claimOf(i)
  local terms = ARGV[3 * i + 1]
  local weight, capacity, queueMs, flags, value = string.match(terms, '^(%d+):(%d+):(%d+):(%a*):(.*)$')
  if not weight then weight, capacity, queueMs, flags, value = ALL, ALL, terms == '' and 0 or terms, '', '' end
  return {
    owner = ARGV[3 * i - 1], ttl = tonumber(ARGV[3 * i]),
    weight = tonumber(weight), capacity = tonumber(capacity), queueMs = tonumber(queueMs),
    announce = string.find(flags, 'a', 1, true) ~= nil, value = string.find(flags, 'v', 1, true) and value,
    steal = string.find(flags, 's', 1, true) ~= nil,
  }
end

-- Its own grant, if it has one: never in its way, never shortened, with the same token and value.
local function again(key, claim, held)
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

local function enqueue(key, claim)
  if call('ZADD', key.queueExpirations, whole(now + claim.queueMs), claim.owner) == 1 then
    local last = tonumber(call('ZRANGE', key.queue, -1, -1, 'WITHSCORES')[2]) or 0
    call('ZADD', key.queue, whole(math.max(last + 1, micros)), claim.owner)
  end
  -- Anew each time: the subscriber may be another than before.
  local wants = { claim.weight, claim.capacity, whole(claim.ttl), whole(claim.queueMs), ARGV[#ARGV], flagsOf(claim) }
  call('HSET', key.waiters, claim.owner, table.concat(wants, ':') .. ':' .. (claim.value or ''))
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

-- A lease that ran out tells nobody: whoever asks first lets in everybody who came earlier and fits. Not before a steal,
-- which would take it away again at once. Returns who holds it and who is first in the queue then.
local function moveOn(key, claim, held)
  local first = head(key)
  if not first or first == claim.owner or claim.steal then return held, first end
  return serve(key, held, first, claim.owner)
end

-- The rule, for one claim.
local function ask(plain, claim)
  local key = open(plain)
  local held, first = standing(key)
  local token = held and again(key, claim, held)
  if token then return token end
  held, first = moveOn(key, claim, held)
  if claim.steal and held then
    evict(key, held)
    held = nil
  end
  if claim.steal or ((not first or first == claim.owner) and fits(held, claim)) then
    if key.queued then leave(key, claim.owner) end
    token, held = grant(key, claim, held, claim.ttl)
    -- Other shares need not find out one by one. It is granted, whatever comes of that.
    if first and claim.weight < ALL then pcall(serve, key, held, head(key)) end
    writeState(key)
    return token
  end
  if claim.queueMs > 0 and not atomic then enqueue(key, claim) end
  if key.queued then writeState(key) end
  return refuse(key, claim, held)
end

-- taken: what earlier claims of the same call want of this key.
local function admits(key, claim, taken)
  local held, first = standing(key)
  if claim.steal then return true end
  if held and held.owner == claim.owner then return true end
  if held and held.total and call('HEXISTS', key.shares, '=' .. claim.owner) == 1 then return true end
  held, first = moveOn(key, claim, held)
  if first and first ~= claim.owner then return false end
  return fits(held, claim) and (held and held.total or 0) + taken + claim.weight <= claim.capacity
end

-- Leases that ended by themselves stay in the index until somebody looks. Now and then look at some, and at more of them as
-- long as many turn out dead: so what is dead stays a fraction of what is alive.
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

local function askAll(from, most)
  for i = from, count do
    if most == 0 then answers[i] = '+'
    else
      local ok, answer = pcall(ask, KEYS[i + 1], claimOf(i))
      answers[i] = ok and answer or failure(answer)
      most = most - 1
    end
  end
end

local function together()
  local taken, possible = {}, true
  for i = 1, count do
    local plain, claim = KEYS[i + 1], claimOf(i)
    possible = possible and admits(open(plain), claim, taken[plain] or 0)
    taken[plain] = (taken[plain] or 0) + claim.weight
  end
  if possible then return askAll(1, -1) end
  for i = 1, count do
    local key = open(KEYS[i + 1])
    -- Those who came earlier may have been let in.
    if key.queued then writeState(key) end
    answers[i] = refuse(key, claimOf(i), standing(key))
  end
end

if atomic then together() else askAll(done + 1, slow) end
if sweeping then pcall(sweep) end
return count == 1 and answers[1] or answers
