-- take.lua   KEYS per request: a meter for each of its limits
-- ARGV sets, then per set: limits, then per limit: b|w|f limit perMs burst blockMs blockGrowth ('' where absent); then either
-- = set cost, for all requests, or per request: set cost    cost x: forget what was taken, and look
-- → flat, per request: remaining resetMicros, if it is allowed and there is nothing more to say; or a list: allowed remaining
-- retryAfterMicros resetMicros, then per limit: remaining nextMicros (none for one token bucket); or '!error'
-- retryAfterMicros -1: never
-- A token bucket is a string, the time at which it is full again, as a double. A fixed window is a string, end:count. A sliding
-- window is a list of at:cost:sum:since, where sum is what was taken up to and with this entry, so that the two ends tell what counts
-- now; a block is one entry of more than the limit. From PARTS entries on, what is taken within a PARTS-th of the window is
-- one entry, which counts as if all of it had been taken at its last moment: never more than the limit in any stretch, at
-- most 514 entries, and a place is free again at most that part of the window late. Otherwise as util/rate.ts says it.
local call, floor, ceil, max = redis.call, math.floor, math.ceil, math.max
local HAIR = 1e-6
local LONGEST_BLOCK = 31536000000
local PARTS = 256
-- SHORTEST_LIFE: how long a bucket stays at least, in milliseconds. One that is full within the next millisecond would otherwise
-- be expired and made anew by every take, which costs more than to overwrite it.
local SHORTEST_LIFE = '1000'
local FAST = true
local clock = call('TIME')
local now = clock[1] * 1000 + clock[2] / 1000

-- Whole numbers, because a fraction would have to be written out as text. Up, so that nobody comes too early.
local function micros(ms)
  return ms == math.huge and -1 or ceil(ms * 1000 - HAIR)
end

local function number(value)
  return string.format('%.17g', value)
end

-- As text a time costs the server a sixth of a take. What is not a time counts as a bucket that is full.
local function packed(fullAt)
  return struct.pack('<d', fullAt)
end

local function unpacked(value)
  return value and #value == 8 and struct.unpack('<d', value) or 0
end

local function lifeUntil(fullAt)
  return fullAt - now < 1000 and SHORTEST_LIFE or ceil(fullAt - now)
end

-- free, fullAt
local function bucket(meter, limit)
  local fullAt = max(unpacked(call('GET', meter)), now)
  return limit.burst - (fullAt > now and (fullAt - now) / limit.perToken or 0), fullAt
end

local function retryBucket(limit, cost, free)
  if cost < 0 then return 0 end
  if cost > limit.burst or limit.limit == 0 then return math.huge end
  local short = (cost - free) * limit.perToken
  return short > HAIR and short or 0
end

local function fill(meter, fullAt)
  if fullAt > now then call('SET', meter, packed(fullAt), 'PX', lifeUntil(fullAt)) else call('DEL', meter) end
end

local function entry(meter, at)
  local text = call('LINDEX', meter, at)
  local last, cost, sum, since = string.match(text or '', '^([^:]+):([^:]+):([^:]+):([^:]+)$')
  return tonumber(last), tonumber(cost), tonumber(sum), tonumber(since)
end

local function textOf(at, cost, sum, since)
  return table.concat({ number(at), number(cost), number(sum), number(since) }, ':')
end

-- The first entry for which this holds, if it holds for all behind it: by halving, so that no number of entries costs much.
local function firstEntry(meter, holds)
  local low, high = 0, call('LLEN', meter)
  while low < high do
    local middle = floor((low + high) / 2)
    if holds(entry(meter, middle)) then high = middle else low = middle + 1 end
  end
  return low
end

-- How long until enough of the oldest entries no longer count.
local function waitFor(meter, limit, cost, free)
  if cost <= free + HAIR then return 0 end
  local at, took, sum = entry(meter, 0)
  if not at then return 0 end
  if cost <= free + took + HAIR then return at + limit.per - now end
  local before = sum - took
  local enough = firstEntry(meter, function(_, _, total) return cost <= free + total - before + HAIR end)
  return (entry(meter, enough) or entry(meter, -1)) + limit.per - now
end

-- free, the last entry, reset
local function window(meter, limit)
  local at, took, sum = entry(meter, 0)
  if at and at + limit.per <= now then
    call('LTRIM', meter, firstEntry(meter, function(last) return last + limit.per > now end), -1)
    at, took, sum = entry(meter, 0)
  end
  if not at then return limit.limit, nil, 0 end
  local last, cost, total, since = entry(meter, -1)
  return limit.limit - (total - sum + took), { cost = cost, sum = total, since = since }, last + limit.per - now
end

-- Each: free, retry, reset before; what charging it needs
local function judge(meter, limit, cost)
  if limit.bucket then
    local free, fullAt = bucket(meter, limit)
    return { free = free, retry = retryBucket(limit, cost, free), reset = fullAt - now, state = fullAt }
  end
  local free, newest, reset = window(meter, limit)
  local retry = cost < 0 and 0 or cost > limit.limit and math.huge or waitFor(meter, limit, cost, free)
  return { free = free, retry = retry, reset = reset, state = newest }
end

-- The latest first: what counts for longest. A block is not given back. → how much
local function giveBack(meter, limit, amount)
  local given = 0
  while given < amount do
    local at, took, sum, since = entry(meter, -1)
    if not at or took > limit.limit then break end
    local part = math.min(took, amount - given)
    given = given + part
    -- LSET keeps the expiry of a list of one, which RPOP and RPUSH would lose.
    if took - part > HAIR then call('LSET', meter, -1, textOf(at, took - part, sum - part, since))
    else call('RPOP', meter) end
  end
  return given
end

local function charge(meter, limit, cost, verdict)
  if limit.bucket then
    local fullAt = max(verdict.state + cost * limit.perToken, now)
    if cost ~= 0 then fill(meter, fullAt) end
    verdict.free = math.min(verdict.free - cost, limit.burst)
    verdict.reset = fullAt - now
  elseif cost > 0 then
    local newest = verdict.state or { cost = 0, sum = 0, since = now }
    local close = verdict.state and now >= newest.since and now - newest.since < limit.per / PARTS
    if close and call('LLEN', meter) >= PARTS then
      call('LSET', meter, -1, textOf(now, newest.cost + cost, newest.sum + cost, newest.since))
    else
      call('RPUSH', meter, textOf(now, cost, newest.sum + cost, now))
    end
    call('PEXPIRE', meter, ceil(limit.per))
    verdict.free = verdict.free - cost
    verdict.reset = limit.per
  elseif cost < 0 then
    verdict.free = verdict.free + giveBack(meter, limit, -cost)
    local last = entry(meter, -1)
    verdict.reset = last and last + limit.per - now or 0
  end
end

-- One entry of more than the limit, in place of all others: until it ends nothing passes, and after it everything is free.
local function block(meter, limit)
  local _, took = entry(meter, 0)
  if took and took > limit.limit then return end
  local began = now + limit.block - limit.per
  call('DEL', meter)
  call('RPUSH', meter, textOf(began, limit.limit + 1, limit.limit + 1, began))
  call('PEXPIRE', meter, ceil(limit.block))
end

-- When there is one more.
local function nextUnit(meter, limit, verdict)
  local whole = max(floor(verdict.free + HAIR), 0)
  if not limit.bucket then return waitFor(meter, limit, whole + 1, verdict.free) end
  if limit.limit == 0 then return 0 end
  return math.min(max((whole + 1 - verdict.free) * limit.perToken, 0), verdict.reset)
end

local function take(limits, used, cost)
  local verdicts, retry = {}, 0
  for i, limit in ipairs(limits) do
    verdicts[i] = judge(KEYS[used + i], limit, cost)
    retry = max(retry, verdicts[i].retry)
  end
  local remaining, reset, states, allowed = math.huge, 0, {}, retry == 0
  for i, limit in ipairs(limits) do
    local meter = KEYS[used + i]
    if allowed then charge(meter, limit, cost, verdicts[i])
    elseif limit.block and verdicts[i].retry > 0 and cost <= limit.limit then
      block(meter, limit)
      verdicts[i] = judge(meter, limit, cost)
      retry = max(retry, verdicts[i].retry)
    end
    remaining = math.min(remaining, verdicts[i].free)
    reset = max(reset, verdicts[i].reset)
    states[i * 2 - 1] = max(floor(verdicts[i].free + HAIR), 0)
    states[i * 2] = micros(nextUnit(meter, limit, verdicts[i]))
  end
  if not allowed then
    retry = 0
    for i = 1, #limits do retry = max(retry, verdicts[i].retry) end
  end
  return allowed and 1 or 0, max(floor(remaining + HAIR), 0), retry, reset, states
end

-- A fixed window, which counts what it refuses too.
local function count(meter, limit, cost)
  local till, counted = string.match(call('GET', meter) or '', '^([^:]+):([^:]+)$')
  till, counted = tonumber(till) or 0, tonumber(counted) or 0
  if till <= now then till, counted = cost > 0 and now + limit.per or now, 0 end
  local before = counted
  counted = max(counted + cost, 0)
  local excess = counted - limit.limit
  if cost > 0 and excess > 0 and limit.block then
    if limit.growth then till = now + math.min(limit.block * limit.growth ^ (ceil(excess) - 1), LONGEST_BLOCK)
    elseif before <= limit.limit then till = now + limit.block end
  end
  if cost ~= 0 and till > now then
    call('SET', meter, number(till) .. ':' .. number(counted), 'PX', ceil(till - now))
  end
  local allowed, left = cost < 0 or excess <= 0, till - now
  local remaining = floor(limit.limit - counted + HAIR)
  return allowed and 1 or 0, remaining, allowed and 0 or left, left, { max(remaining, 0), micros(left) }
end

local function takeBucket(meter, limit, cost)
  local free, fullAt = bucket(meter, limit)
  local retry = retryBucket(limit, cost, free)
  if retry > 0 then return 0, max(floor(free + HAIR), 0), retry, fullAt - now end
  if cost > 0 then
    fullAt = fullAt + cost * limit.perToken
    fill(meter, fullAt)
  end
  return 1, max(floor(free - cost + HAIR), 0), 0, fullAt - now
end

local sets, at = {}, 2
for i = 1, tonumber(ARGV[1]) do
  local set, size = {}, tonumber(ARGV[at])
  for j = 1, size do
    local from = at + 1 + (j - 1) * 6
    local limit, per = tonumber(ARGV[from + 1]), tonumber(ARGV[from + 2])
    set[j] = {
      bucket = ARGV[from] == 'b', fixed = ARGV[from] == 'f', limit = limit, per = per, burst = tonumber(ARGV[from + 3]),
      perToken = per / limit, block = tonumber(ARGV[from + 4]), growth = tonumber(ARGV[from + 5])
    }
  end
  sets[i], at = set, at + 1 + size * 6
end

local function decide(set, used, cost)
  if cost == 'x' then
    for i = 1, #set do call('DEL', KEYS[used + i]) end
    cost = '0'
  end
  cost = tonumber(cost)
  if #set > 1 then return take(set, used, cost) end
  if set[1].fixed then return count(KEYS[used + 1], set[1], cost) end
  if set[1].bucket and cost >= 0 then return takeBucket(KEYS[used + 1], set[1], cost) end
  return take(set, used, cost)
end

local same = ARGV[at] == '='
local set, cost = sets[tonumber(ARGV[at + 1])], ARGV[at + 2]
local answers, n, used, last = {}, 0, 0, #KEYS

-- FAST PATH: all requests take the same from one token bucket each, as `takeBucket` says it. One command reads all buckets.
-- Returns false if that failed, and nothing has been taken then.
local function takeBuckets(limit, amount)
  local try, pack, unpackTime = redis.pcall, struct.pack, struct.unpack
  local held = try('MGET', (unpack or table.unpack)(KEYS))
  if held.err then return false end
  -- MGET shows no key of another type. NX does not overwrite it, and GET names the error, as for `takeBucket`.
  -- taken: a bucket may be there twice, and `held` does not show what the first request took.
  local burst, perToken, taken = limit.burst, limit.perToken, {}
  local charge, never = amount * perToken, amount > burst or limit.limit == 0
  for i = 1, last do
    local meter, value = KEYS[i], held[i]
    local fullAt = taken[meter] or value and #value == 8 and unpackTime('<d', value) or 0
    if fullAt < now then fullAt = now end
    local free = burst - (fullAt > now and (fullAt - now) / perToken or 0)
    local short = never and math.huge or (amount - free) * perToken
    local isNew, set = not value and not taken[meter]
    if short > HAIR or amount == 0 then
      if isNew then set = try('GET', meter) end
    else
      fullAt = fullAt + charge
      local life = fullAt - now < 1000 and SHORTEST_LIFE or ceil(fullAt - now)
      if isNew then set = try('SET', meter, pack('<d', fullAt), 'PX', life, 'NX') or try('GET', meter)
      else set = try('SET', meter, pack('<d', fullAt), 'PX', life) end
    end
    if set and set.err then
      answers[n + 1], n = '!' .. set.err, n + 1
    elseif short > HAIR then
      answers[n + 1], n = { 0, max(floor(free + HAIR), 0), micros(short), micros(fullAt - now) }, n + 1
    else
      taken[meter] = fullAt
      answers[n + 1], answers[n + 2], n = max(floor(free - amount + HAIR), 0), ceil((fullAt - now) * 1000 - HAIR), n + 2
    end
  end
  return true
end

-- amount: nothing for x. Lua cannot pass on more than some thousand names at once.
local amount = same and last <= 1000 and tonumber(cost)
if FAST and amount and amount >= 0 and #set == 1 and set[1].bucket and takeBuckets(set[1], amount) then return answers end

while used < last do
  if not same then set, cost, at = sets[tonumber(ARGV[at])], ARGV[at + 1], at + 2 end
  local ok, allowed, remaining, retry, reset, states = pcall(decide, set, used, cost)
  if not ok then
    answers[n + 1], n = '!' .. (type(allowed) == 'table' and allowed.err or tostring(allowed)), n + 1
  elseif allowed == 1 and not states then
    answers[n + 1], answers[n + 2], n = remaining, micros(reset), n + 2
  else
    local answer = { allowed, remaining, micros(retry), micros(reset) }
    for i, state in ipairs(states or {}) do answer[4 + i] = state end
    answers[n + 1], n = answer, n + 1
  end
  used = used + #set
end
return answers
