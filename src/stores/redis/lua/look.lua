-- look.lua   KEYS index, then per key: plain      ARGV holders|all|revoke
-- → per key: [holders, waiting, waiters] | '!error'
-- holders: [owner, weight, capacity, token, ttlMs, heldMs, value, foreign] each     waiters, unless holders:
-- [owner, weight, capacity, waitedMs, value] each, in order     revoke: ends all leases, and lets the next in

local function holders(key, held)
  if not held then return {} end
  if not held.total then
    local since = held.token and whole(math.max(now - held.token / 1000, 0)) or false
    local _, value = noteOf(key, held.token)
    local ttl = call('PTTL', key.plain)
    return { { held.owner, ALL, ALL, held.token or false, ttl, since, value, held.foreign and 1 or 0 } }
  end
  local rows, ends = {}, call('ZRANGE', key.ends, 0, -1, 'WITHSCORES')
  for i = 1, #ends, 2 do
    local one = unpackShare(call('HGET', key.shares, '=' .. ends[i]))
    local since = whole(math.max(now - one.token / 1000, 0))
    rows[#rows + 1] = { ends[i], one.weight, one.capacity, one.token, whole(ends[i + 1] - now), since, one.value, 0 }
  end
  return rows
end

local function waiters(key)
  local rows, line = {}, call('ZRANGE', key.line, 0, -1, 'WITHSCORES')
  for i = 1, #line, 2 do
    local place = placeOf(key, line[i])
    local waited = whole(math.max(now - line[i + 1] / 1000, 0))
    rows[#rows + 1] = { place.owner, place.weight, place.capacity, waited, place.value }
  end
  return rows
end

local function look(plain)
  local key = open(plain)
  local held = standing(key)
  head(key)
  if not held then call('HDEL', index, plain) end
  local rows = holders(key, held)
  if ARGV[1] == 'revoke' and held then
    evict(key, held)
    pcall(serve, key)
    pcall(mark, key)
  end
  return { rows, call('ZCARD', key.line), ARGV[1] == 'all' and waiters(key) or {} }
end

local answers = {}
for i = 1, #KEYS - 1 do
  local ok, answer = pcall(look, KEYS[i + 1])
  answers[i] = ok and answer or failure(answer)
end
return answers
