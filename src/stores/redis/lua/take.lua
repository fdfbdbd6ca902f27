-- take.lua   KEYS per limit of each request: meter      ARGV per request: limits cost, then per limit: b|w limit perMs burst
-- → per request: [allowed, remaining, retryAfterMs, resetMs] with fractions, retryAfterMs -1: never | '!error'
-- A token bucket is a string, the time at which it is full again. A sliding window is a list of at:cost:sum, where sum is
-- what was taken up to and with this entry, so that the two ends tell what counts now. Says the same as kit/rate.ts.
local call = redis.call
local HAIR = 1e-6
local clock = call('TIME')
local now = clock[1] * 1000 + clock[2] / 1000

local function number(value)
  return string.format('%.17g', value)
end

local function judgeBucket(limit, cost)
  local perToken = limit.per / limit.limit
  limit.fullAt = math.max(tonumber(call('GET', limit.meter)) or 0, now)
  local missing = limit.fullAt - now
  local free = limit.burst - (missing > 0 and missing / perToken or 0)
  local short = (cost - free) * perToken
  local never = cost > limit.burst or limit.limit == 0
  return { remaining = free, retry = never and math.huge or (short > HAIR and short or 0), reset = missing }
end

local function entry(text)
  local at, cost, sum = string.match(text or '', '^([^:]+):([^:]+):([^:]+)$')
  return tonumber(at), tonumber(cost), tonumber(sum)
end

-- How long until enough of the oldest entries no longer count.
local function waitFor(limit, cost, free)
  local retry = 0
  for from = 0, 1e9, 100 do
    local page = call('LRANGE', limit.meter, from, from + 99)
    for _, text in ipairs(page) do
      if cost <= free + HAIR then return retry end
      local at, took = entry(text)
      free = free + took
      retry = at + limit.per - now
    end
    if #page < 100 then return retry end
  end
end

local function judgeWindow(limit, cost)
  local at, took, sum = entry(call('LINDEX', limit.meter, 0))
  while at and at + limit.per <= now do
    call('LPOP', limit.meter)
    at, took, sum = entry(call('LINDEX', limit.meter, 0))
  end
  local last, _, total = entry(call('LINDEX', limit.meter, -1))
  limit.sum = total or 0
  local free = limit.limit - (at and total - sum + took or 0)
  local retry = cost > limit.limit and math.huge or waitFor(limit, cost, free)
  return { remaining = free, retry = retry, reset = last and last + limit.per - now or 0 }
end

local function judge(limit, cost)
  return (limit.bucket and judgeBucket or judgeWindow)(limit, cost)
end

local function charge(limit, cost)
  if limit.bucket then
    local fullAt = limit.fullAt + cost * limit.per / limit.limit
    if fullAt > now then call('SET', limit.meter, number(fullAt), 'PX', number(math.ceil(fullAt - now))) end
  elseif cost > 0 then
    call('RPUSH', limit.meter, number(now) .. ':' .. number(cost) .. ':' .. number(limit.sum + cost))
    call('PEXPIRE', limit.meter, number(math.ceil(limit.per)))
  end
end

local function take(limits, cost)
  local allowed, verdicts, retry = true, {}, 0
  for i, limit in ipairs(limits) do
    verdicts[i] = judge(limit, cost)
    retry = math.max(retry, verdicts[i].retry)
    allowed = allowed and verdicts[i].retry == 0
  end
  if allowed then
    for i, limit in ipairs(limits) do
      charge(limit, cost)
      verdicts[i] = judge(limit, 0)
    end
  end
  local remaining, reset = math.huge, 0
  for _, verdict in ipairs(verdicts) do
    remaining = math.min(remaining, math.max(math.floor(verdict.remaining + HAIR), 0))
    reset = math.max(reset, verdict.reset)
  end
  return { allowed and 1 or 0, number(remaining), retry == math.huge and '-1' or number(retry), number(reset) }
end

local answers, at, used = {}, 1, 0
while at <= #ARGV do
  local limits, count = {}, tonumber(ARGV[at])
  for i = 1, count do
    local from = at + 2 + (i - 1) * 4
    limits[i] = {
      meter = KEYS[used + i], bucket = ARGV[from] == 'b', limit = tonumber(ARGV[from + 1]),
      per = tonumber(ARGV[from + 2]), burst = tonumber(ARGV[from + 3]),
    }
  end
  local ok, answer = pcall(take, limits, tonumber(ARGV[at + 1]))
  answers[#answers + 1] = ok and answer or '!' .. (type(answer) == 'table' and answer.err or tostring(answer))
  at, used = at + 2 + count * 4, used + count
end
return answers
