-- take.lua   KEYS per request: a meter for each of its limits
-- ARGV sets, then per set: limits, then per limit: b|w limit perMs burst; then either = set cost, for all requests, or per request: set cost
-- → flat, per request: allowed remaining retryAfterMicros resetMicros    retryAfterMicros -1: never; allowed is '!error' if it failed
-- A token bucket is a string, the time at which it is full again. A sliding window is a list of at:cost:sum, where sum is
-- what was taken up to and with this entry, so that the two ends tell what counts now. Says the same as kit/rate.ts.
local call, floor, ceil, max = redis.call, math.floor, math.ceil, math.max
local HAIR = 1e-6
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

local function entry(text)
  local at, cost, sum = string.match(text or '', '^([^:]+):([^:]+):([^:]+)$')
  return tonumber(at), tonumber(cost), tonumber(sum)
end

-- How long until enough of the oldest entries no longer count.
local function waitFor(meter, limit, cost, free)
  local retry = 0
  for from = 0, 1e9, 100 do
    local page = call('LRANGE', meter, from, from + 99)
    for _, text in ipairs(page) do
      if cost <= free + HAIR then return retry end
      local at, took = entry(text)
      free = free + took
      retry = at + limit.per - now
    end
    if #page < 100 then return retry end
  end
end

-- free, sum so far, reset
local function window(meter, limit)
  local at, took, sum = entry(call('LINDEX', meter, 0))
  while at and at + limit.per <= now do
    call('LPOP', meter)
    at, took, sum = entry(call('LINDEX', meter, 0))
  end
  local last, _, total = entry(call('LINDEX', meter, -1))
  return limit.limit - (at and total - sum + took or 0), total or 0, last and last + limit.per - now or 0
end

-- Each: free, retry, reset before; what charging it needs
local function judge(meter, limit, cost)
  if limit.bucket then
    local free, fullAt = bucket(meter, limit)
    return { free = free, retry = retryBucket(limit, cost, free), reset = fullAt - now, state = fullAt }
  end
  local free, sum, reset = window(meter, limit)
  local retry = cost > limit.limit and math.huge or waitFor(meter, limit, cost, free)
  return { free = free, retry = retry, reset = reset, state = sum }
end

local function charge(meter, limit, cost, verdict)
  verdict.free = verdict.free - cost
  if limit.bucket then
    local fullAt = verdict.state + cost * limit.perToken
    fill(meter, fullAt)
    verdict.reset = fullAt - now
  elseif cost > 0 then
    call('RPUSH', meter, number(now) .. ':' .. number(cost) .. ':' .. number(verdict.state + cost))
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
