-- acquire.lua   KEYS index, then per claim: plain      ARGV [*][deadline], then per claim: owner ttlMs terms, then ear
-- *: all claims or none, and nobody stands in line
-- deadline: by the server's clock in microseconds; after it nothing is done, and the answer is '@' and the time
-- terms: '' or placeMs for an exclusive claim without further wishes; else weight:capacity:placeMs:flags:value
-- placeMs 0 or none: do not stand in line      ear: where whoever asks hears that it was handed the lease
-- → per claim: token | [ahead, owner, ttlMs, token, value, foreign] refused | '!error'      (a lone answer is not in a list)

local function claimOf(i)
  local terms = ARGV[3 * i + 1]
  local weight, capacity, place, flags, value = string.match(terms, '^(%d+):(%d+):(%d+):(%a*):(.*)$')
  if not weight then weight, capacity, place, flags, value = ALL, ALL, terms == '' and 0 or terms, '', '' end
  return {
    owner = ARGV[3 * i - 1], ttl = tonumber(ARGV[3 * i]),
    weight = tonumber(weight), capacity = tonumber(capacity), place = tonumber(place),
    announce = string.find(flags, 'a', 1, true) ~= nil, value = string.find(flags, 'v', 1, true) and value,
    steal = string.find(flags, 's', 1, true) ~= nil,
  }
end

-- Its own grant, if it has one: never in its way, never shortened, with the same token.
local function again(key, claim, held)
  if held.total then
    local entry = call('HGET', key.shares, '=' .. claim.owner)
    if not entry then return nil end
    local ends = math.max(tonumber(call('ZSCORE', key.ends, claim.owner)), now + claim.ttl)
    call('ZADD', key.ends, whole(ends), claim.owner)
    fitExpiry(key)
    return unpackShare(entry).token
  end
  if held.owner ~= claim.owner then return nil end
  local left = call('PTTL', key.plain)
  -- The index was lost and the lease was not: it gets a token anew, larger than the one it had.
  if held.foreign then return grant(key, claim, nil, math.max(left, claim.ttl)) end
  if left < claim.ttl then
    call('PEXPIRE', key.plain, claim.ttl)
    call('PEXPIRE', key.note, claim.ttl)
    keepIndex(micros, micros, claim.ttl)
  end
  return held.token
end

local function stand(key, claim)
  if call('ZADD', key.till, whole(now + claim.place), claim.owner) == 1 then
    local last = tonumber(call('ZRANGE', key.line, -1, -1, 'WITHSCORES')[2]) or 0
    call('ZADD', key.line, whole(math.max(last + 1, micros)), claim.owner)
  end
  -- Anew each time: it may be told in another way than before.
  local wants = { claim.weight, claim.capacity, whole(claim.ttl), whole(claim.place), ARGV[#ARGV], flagsOf(claim) }
  call('HSET', key.places, claim.owner, table.concat(wants, ':') .. ':' .. (claim.value or ''))
  local last = call('ZRANGE', key.till, -1, -1, 'WITHSCORES')[2]
  for _, name in ipairs({ key.line, key.till, key.places }) do call('PEXPIREAT', name, last) end
end

local function refuse(key, claim, held)
  local ahead = call('ZRANK', key.line, claim.owner) or call('ZCARD', key.line)
  if not held then return { ahead } end
  if held.total then
    local first = call('ZRANGE', key.ends, 0, 0, 'WITHSCORES')
    local one = unpackShare(call('HGET', key.shares, '=' .. first[1]))
    return { ahead, first[1], whole(first[2] - now), one.token, one.value, 0 }
  end
  local _, value = noteOf(key, held.token)
  return { ahead, held.owner, call('PTTL', key.plain), held.token or false, value, held.foreign and 1 or 0 }
end

-- A lease that ran out rings no bell: whoever asks first lets in everybody who came earlier and fits. Not before a theft,
-- which would take it away again at once. Returns who holds it and who is first in line then.
local function moveOn(key, claim, held)
  local first = head(key)
  if not first or first == claim.owner or claim.steal then return held, first end
  serve(key, claim.owner)
  return standing(key), head(key)
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
    if first then leave(key, claim.owner) end
    token = grant(key, claim, held, claim.ttl)
    -- Others who share it need not find out one by one. It is granted, whatever comes of that.
    if first and claim.weight < ALL then pcall(serve, key) end
    mark(key)
    return token
  end
  local stands = claim.place > 0 and not atomic
  if stands then stand(key, claim) end
  if first or stands then mark(key) end
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
      local key = plain and keyOf(plain)
      if key then settle(key) end
      -- That there is a line is not forgotten while the lock is held: its places may be on their way, with a slot that moves.
      local known = plain == field and { plain } or key and { plain, key.line, key.note }
      local alive = not plain or call('EXISTS', unpack(known)) > 0
      if not alive then dead = dead + call('HDEL', index, field) end
    end
    if dead < 2 then return end
  end
end

local function askAll(from)
  for i = from, #KEYS - 1 do
    local ok, answer = pcall(ask, KEYS[i + 1], claimOf(i))
    answers[i] = ok and answer or failure(answer)
  end
end

local function together()
  local taken, possible = {}, true
  for i = 1, #KEYS - 1 do
    local plain, claim = KEYS[i + 1], claimOf(i)
    possible = possible and admits(open(plain), claim, taken[plain] or 0)
    taken[plain] = (taken[plain] or 0) + claim.weight
  end
  if possible then return askAll(1) end
  for i = 1, #KEYS - 1 do
    local key = open(KEYS[i + 1])
    -- Those who came earlier may have been let in.
    if call('EXISTS', key.line) == 1 then mark(key) end
    answers[i] = refuse(key, claimOf(i), standing(key))
  end
end

if atomic then together() else askAll(done + 1) end
if sweeping then pcall(sweep) end
return #answers == 1 and answers[1] or answers
