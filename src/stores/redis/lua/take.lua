-- take.lua   KEYS per request: a meter for each of its limits
-- ARGV sets, then per set: limits, then per limit: b|w limit perMs burst; then either = set cost, for all requests, or per request: set cost
-- → flat, per request: allowed remaining retryAfterMicros resetMicros    retryAfterMicros -1: never; allowed is '!error' if it failed
-- A token bucket is a string, the time at which it is full again. A sliding window is a list of at:cost:sum:since, where sum
-- is what was taken up to and with this entry, so that the two ends tell what counts now. What is taken within PARTS-th of
-- a window is one entry, which counts as if all of it had been taken at its last moment: never more than the limit in any
-- stretch, at most 258 entries, and a place is free again at most that part of the window late. Otherwise as kit/rate.ts.
local call, floor, ceil, max = redis.call, math.floor, math.ceil, math.max
local HAIR = 1e-6
local PARTS = 256
local clock = call('TIME')
local now = clock[1] * 1000 + clock[2] / 1000

-- Whole numbers, because a fraction would have to be written out as text. Up, so that nobody comes too early.
local function micros(ms)
  return ms == math.huge and -1 or ceil(ms * 1000 - HAIR)
end

local function number(value)
  return string.format('%.17g', value)
end

-- free, fullAt
local function bucket(meter, limit)
  local fullAt = max(tonumber(call('GET', meter)) or 0, now)
  return limit.burst - (fullAt > now and (fullAt - now) / limit.perToken or 0), fullAt
end

local function retryBucket(limit, cost, free)
  if cost > limit.burst or limit.limit == 0 then return math.huge end
  local short = (cost - free) * limit.perToken
  return short > HAIR and short or 0
end

local function fill(meter, fullAt)
  if fullAt > now then call('SET', meter, fullAt, 'PX', ceil(fullAt - now)) end
end

local function entry(meter, at)
  local text = call('LINDEX', meter, at)
  local last, cost, sum, since = string.match(text or '', '^([^:]+):([^:]+):([^:]+):([^:]+)$')
  return tonumber(last), tonumber(cost), tonumber(sum), tonumber(since)
end

-- The first entry for which this holds, if it holds for all behind it: by halving, so that no number of entries costs much.
local function firstEntry(meter, size, holds)
  local low, high = 0, size
  while low < high do
    local middle = floor((low + high) / 2)
    if holds(entry(meter, middle)) then high = middle else low = middle + 1 end
  end
  return low
end

-- How long until enough of the oldest entries no longer count.
local function waitFor(meter, limit, cost, free, before)
  if cost <= free + HAIR then return 0 end
  local size = call('LLEN', meter)
  local at = firstEntry(meter, size, function(_, _, sum) return cost <= free + sum - before + HAIR end)
  return entry(meter, math.min(at, size - 1)) + limit.per - now
end

-- free, the last entry, what was taken before the first one, reset
local function window(meter, limit)
  local at, took, sum = entry(meter, 0)
  if at and at + limit.per <= now then
    local size = call('LLEN', meter)
    local counting = firstEntry(meter, size, function(last) return last + limit.per > now end)
    call('LTRIM', meter, counting, -1)
    at, took, sum = entry(meter, 0)
  end
  if not at then return limit.limit, nil, 0, 0 end
  local last, cost, total, since = entry(meter, -1)
  local newest = { cost = cost, sum = total, since = since }
  return limit.limit - (total - sum + took), newest, sum - took, last + limit.per - now
end

-- Each: free, retry, reset before; what charging it needs
local function judge(meter, limit, cost)
  if limit.bucket then
    local free, fullAt = bucket(meter, limit)
    return { free = free, retry = retryBucket(limit, cost, free), reset = fullAt - now, state = fullAt }
  end
  local free, newest, before, reset = window(meter, limit)
  local retry = cost > limit.limit and math.huge or waitFor(meter, limit, cost, free, before)
  return { free = free, retry = retry, reset = reset, state = newest }
end

local function charge(meter, limit, cost, verdict)
  verdict.free = verdict.free - cost
  if limit.bucket then
    local fullAt = verdict.state + cost * limit.perToken
    fill(meter, fullAt)
    verdict.reset = fullAt - now
  elseif cost > 0 then
    local newest = verdict.state or { cost = 0, sum = 0, since = now }
    local joins = verdict.state and now - newest.since < limit.per / PARTS and now >= newest.since
    local took, since = joins and newest.cost + cost or cost, joins and newest.since or now
    local text = table.concat({ number(now), number(took), number(newest.sum + cost), number(since) }, ':')
    if joins then call('LSET', meter, -1, text) else call('RPUSH', meter, text) end
    call('PEXPIRE', meter, ceil(limit.per))
    verdict.reset = limit.per
  end
end

local function take(limits, used, cost)
  local verdicts, retry = {}, 0
  for i, limit in ipairs(limits) do
    verdicts[i] = judge(KEYS[used + i], limit, cost)
    retry = max(retry, verdicts[i].retry)
  end
  local remaining, reset = math.huge, 0
  for i, limit in ipairs(limits) do
    if retry == 0 then charge(KEYS[used + i], limit, cost, verdicts[i]) end
    remaining = math.min(remaining, verdicts[i].free)
    reset = max(reset, verdicts[i].reset)
  end
  return retry == 0 and 1 or 0, remaining, retry, reset
end

-- The usual case, without a table.
local function takeBucket(meter, limit, cost)
  local free, fullAt = bucket(meter, limit)
  local retry = retryBucket(limit, cost, free)
  if retry > 0 then return 0, free, retry, fullAt - now end
  fullAt = fullAt + cost * limit.perToken
  fill(meter, fullAt)
  return 1, free - cost, 0, fullAt - now
end

local sets, at = {}, 2
for i = 1, tonumber(ARGV[1]) do
  local set, count = {}, tonumber(ARGV[at])
  for j = 1, count do
    local from = at + 1 + (j - 1) * 4
    local limit, per = tonumber(ARGV[from + 1]), tonumber(ARGV[from + 2])
    set[j] = { bucket = ARGV[from] == 'b', limit = limit, per = per, burst = tonumber(ARGV[from + 3]), perToken = per / limit }
  end
  sets[i], at = set, at + 1 + count * 4
end

local same = ARGV[at] == '='
local set, cost = sets[tonumber(ARGV[at + 1])], tonumber(ARGV[at + 2])
local answers, n, used, last = {}, 0, 0, #KEYS
while used < last do
  if not same then set, cost, at = sets[tonumber(ARGV[at])], tonumber(ARGV[at + 1]), at + 2 end
  local ok, allowed, remaining, retry, reset
  if #set == 1 and set[1].bucket then ok, allowed, remaining, retry, reset = pcall(takeBucket, KEYS[used + 1], set[1], cost)
  else ok, allowed, remaining, retry, reset = pcall(take, set, used, cost) end
  if ok then
    answers[n + 1], answers[n + 2] = allowed, max(floor(remaining + HAIR), 0)
    answers[n + 3], answers[n + 4] = micros(retry), micros(reset)
  else
    answers[n + 1] = '!' .. (type(allowed) == 'table' and allowed.err or tostring(allowed))
    answers[n + 2], answers[n + 3], answers[n + 4] = 0, 0, 0
  end
  n, used = n + 4, used + #set
end
return answers
