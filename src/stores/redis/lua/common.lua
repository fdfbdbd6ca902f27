-- common.lua   what the scripts share: each runs as its own file behind this one
--
-- For all keys of one kind (and slot of a cluster), expiring a day after its last use:
--   index        hash     '' → the last token
--                         plain → token:content of plain     who was granted it last, and so the token of whoever holds it
--                         plain\0 → there is a line, or a note: take the long way
-- Of each key, all in one slot, none without an expiry:
--   plain        string   the owner of an exclusive lease, or SHARED..token while several hold; there while it is held
--   …:note       string   token:flags:value of an exclusive lease that is announced or has a value
--   …:heir       string   there while somebody waits: holder\0ttlMs address\0token\0letter, to whom the lease of that holder
--                         goes next, with this token at least; or that it takes the long way to tell
--   …:shares     hash     =owner → weight:capacity:token:flags:value of each who shares; total; marker = content of plain
--   …:ends       zset     who shares, by the time at which their lease ends
--   …:line       zset     who waits, by arrival
--   …:until      zset     who waits, by the time at which their place ends
--   …:places     hash     owner → weight:capacity:ttlMs:placeMs:ear:flags:value of each who waits
--   …:bell       channel  what happens to the key
--   …:bell:ear   channel  what concerns only who waits behind that ear: no other process wakes up for it
-- Of each process that takes mail:
--   mail:ear     list     letters: token (16 digits) ttlMs (12 digits) owner \0 plain, of what it was handed
-- Flags: a announced, v there is a value, s steal. Times are the server's, in milliseconds.
local call = redis.call
local PUBLISH = 'PUBLISH'
local ALL = 2147483647
local DAY = 86400000
local HOUR = 3600000
local SHARED = 'leasehold:shared:'

local index = KEYS[1]
local lead, rest = string.match(index, '^(.*)leasehold:held:(.*)$')
local tag = string.match(rest, '^{[^}]*}')
local clock = call('TIME')
local micros = clock[1] * 1000000 + clock[2]
local now = math.floor(micros / 1000)

local function whole(number)
  return string.format('%.0f', number)
end

-- The one string that goes back for an item that failed; the others of the batch are answered all the same.
local function failure(reason)
  return '!' .. (type(reason) == 'table' and reason.err or tostring(reason))
end

-- The names of all that belongs to a plain key, in its slot. The same rule in TypeScript: names.ts
local function keyOf(plain)
  local base = lead .. 'leasehold:{' .. plain .. '}:'
  local open = string.find(plain, '{', 1, true)
  local close = open and string.find(plain, '}', open, true)
  if close and close > open + 1 then base = lead .. 'leasehold:' .. plain .. ':'
  elseif tag and string.find(plain, '}', 1, true) then base = lead .. 'leasehold:' .. tag .. plain .. ':' end
  return {
    plain = plain, more = plain .. '\0', note = base .. 'note', shares = base .. 'shares', ends = base .. 'ends',
    line = base .. 'line', till = base .. 'until', places = base .. 'places', bell = base .. 'bell', heir = base .. 'heir',
  }
end

local function tell(key, event)
  call(PUBLISH, key.bell, event)
end

-- Where those behind an ear hear that they were handed something: > a mailbox, # a channel
local function addressOf(key, ear)
  if string.sub(ear, 1, 1) == 'm' then return '>' .. lead .. 'leasehold:mail:' .. ear end
  return '#' .. key.bell .. ':' .. ear
end

-- What they are told, behind the token in sixteen digits.
local function letterOf(key, owner, ttl)
  return string.format('%012d', ttl) .. owner .. '\0' .. key.plain
end

local function digits(token)
  return string.sub('000000000000000' .. token, -16)
end

local function tellGrant(key, claim, token, ttl)
  local how, address = string.match(addressOf(key, claim.ear), '^(.)(.*)$')
  local letter = digits(token) .. letterOf(key, claim.owner, ttl)
  if how == '#' then return call(PUBLISH, address, 'granted ' .. letter) end
  call('RPUSH', address, letter)
  call('PEXPIRE', address, ttl)
end

-- The index lives longer than every lease in it. Looked at every ten thousand seconds, or for leases of more than half a day.
local function keepIndex(last, token, ttl)
  if ttl < DAY / 2 and math.floor(last / 1e10) == math.floor(token / 1e10) then return end
  local wanted = math.max(DAY, ttl) + 4 * HOUR
  if call('PTTL', index) < wanted then call('PEXPIRE', index, whole(wanted)) end
end

-- Larger than every token before it, also if the clock went back; and by the clock, if the index was lost.
local function mint(ttl)
  local last = tonumber(call('HGET', index, '')) or 0
  local token = math.max(last + 1, micros)
  call('HSET', index, '', whole(token))
  keepIndex(last, token, ttl)
  return whole(token)
end

local function flagsOf(claim)
  return (claim.announce and 'a' or '') .. (claim.value and 'v' or '')
end

-- What the plain key holds, as text; true behind it if it is a key of another type.
local function content(plain)
  local value = redis.pcall('GET', plain)
  if type(value) ~= 'table' then return value end
  if string.find(value.err, 'WRONGTYPE', 1, true) then return '(' .. call('TYPE', plain).ok .. ')', true end
  error(value)
end

-- The note of an exclusive lease: whether it is announced, and its value.
local function noteOf(key, token)
  local of, flags, value = string.match(call('GET', key.note) or '', '^(%d+):(%a*):(.*)$')
  if not token or of ~= token then return false, false end
  return string.find(flags, 'a', 1, true) ~= nil, string.find(flags, 'v', 1, true) and value
end

local function writeNote(key, claim, token, ttl)
  if not claim.announce and not claim.value then return end
  call('SET', key.note, token .. ':' .. flagsOf(claim) .. ':' .. (claim.value or ''), 'PX', ttl)
  call('HSET', index, key.more, 'more')
end

local function unpackShare(entry)
  local weight, capacity, token, flags, value = string.match(entry, '^(%d+):(%d+):(%d+):(%a*):(.*)$')
  return {
    weight = tonumber(weight), capacity = capacity, token = token,
    announce = string.find(flags, 'a', 1, true) ~= nil, value = string.find(flags, 'v', 1, true) and value,
  }
end

local function clear(key)
  call('DEL', key.plain, key.note, key.shares, key.ends)
  call('HDEL', index, key.plain)
end

-- The plain key and the books of those who share it live exactly as long as the longest share.
local function fitExpiry(key)
  local last = call('ZRANGE', key.ends, -1, -1, 'WITHSCORES')[2]
  for _, name in ipairs({ key.plain, key.shares, key.ends }) do call('PEXPIREAT', name, last) end
end

-- Strikes one share off the books and returns its weight. The caller then clears, or fits the expiry.
local function dropShare(key, owner)
  local held = unpackShare(call('HGET', key.shares, '=' .. owner))
  call('ZREM', key.ends, owner)
  call('HDEL', key.shares, '=' .. owner)
  call('HINCRBY', key.shares, 'total', -held.weight)
  if held.announce then tell(key, 'changed') end
  return held.weight
end

-- Who holds it, after dropping what expired: nil | { owner, token } | { owner, foreign } | { total, marker }
local function standing(key)
  local owner, odd = content(key.plain)
  if not owner then return nil end
  if odd or string.sub(owner, 1, #SHARED) ~= SHARED then
    local token, known = string.match(call('HGET', index, key.plain) or '', '^(%d+):(.*)$')
    if odd or known ~= owner then return { owner = owner, foreign = true } end
    return { owner = owner, token = token }
  end
  local books = call('HMGET', key.shares, 'marker', 'total')
  -- Without the books of this very marker nobody knows who shares: but somebody does, until the marker expires.
  if books[1] ~= owner then return { owner = owner, foreign = true } end
  local total = tonumber(books[2])
  for _, gone in ipairs(call('ZRANGEBYSCORE', key.ends, '-inf', now)) do total = total - dropShare(key, gone) end
  if total > 0 then return { total = total, marker = owner } end
  clear(key)
  return nil
end

local function fits(held, claim)
  if not held then return claim.weight <= claim.capacity end
  return held.total ~= nil and held.total + claim.weight <= claim.capacity
end

local function share(key, claim, held, token, ttl)
  local marker = held and held.marker or SHARED .. token
  if not held then
    call('DEL', key.shares, key.ends)
    call('SET', key.plain, marker, 'PX', ttl)
    call('HSET', index, key.plain, token .. ':' .. marker)
  end
  local entry = table.concat({ claim.weight, claim.capacity, token, flagsOf(claim), claim.value or '' }, ':')
  local total = (held and held.total or 0) + claim.weight
  call('HSET', key.shares, 'marker', marker, 'total', total, '=' .. claim.owner, entry)
  call('ZADD', key.ends, whole(now + ttl), claim.owner)
  fitExpiry(key)
end

-- Grants what nobody is in the way of (any more).
local function grant(key, claim, held, ttl)
  local token = mint(ttl)
  if claim.weight == ALL then
    call('SET', key.plain, claim.owner, 'PX', ttl)
    call('HSET', index, key.plain, token .. ':' .. claim.owner)
    call('DEL', key.note)
    writeNote(key, claim, token, ttl)
  else
    share(key, claim, held, token, ttl)
  end
  if claim.announce then tell(key, 'changed') end
  return token
end

-- Ends every lease of the key, foreign ones too, and tells whoever may need to know.
local function evict(key, held)
  local owners = held.total and call('ZRANGE', key.ends, 0, -1) or { held.owner }
  local announced = noteOf(key, held.token)
  for _, owner in ipairs(owners) do
    if held.total then dropShare(key, owner) end
    tell(key, 'revoked ' .. owner)
    call('PUBLISH', lead .. 'leasehold:revoked', owner)
  end
  clear(key)
  if announced then tell(key, 'changed') end
end

local function leave(key, owner)
  if call('ZREM', key.line, owner) == 0 then return false end
  call('ZREM', key.till, owner)
  call('HDEL', key.places, owner)
  return true
end

-- Drops places whose owners fell silent; returns who is first in line.
local function head(key)
  for _, owner in ipairs(call('ZRANGEBYSCORE', key.till, '-inf', now)) do leave(key, owner) end
  return call('ZRANGE', key.line, 0, 0)[1]
end

local function placeOf(key, owner)
  local weight, capacity, ttl, place, ear, flags, value =
    string.match(call('HGET', key.places, owner), '^(%d+):(%d+):(%d+):(%d+):(%w*):(%a*):(.*)$')
  return {
    owner = owner, weight = tonumber(weight), capacity = tonumber(capacity), ttl = tonumber(ttl), place = tonumber(place),
    ear = ear, announce = string.find(flags, 'a', 1, true) ~= nil, value = string.find(flags, 'v', 1, true) and value,
  }
end

-- Hands the lease to the head of the line while there is room: no second question, no race with newcomers.
-- Provisionally, for as long as a place lasts: if it is dead, it must not block the others for a whole ttl.
-- Stops before the one who is asking right now: that one gets more than a hand-over.
local function serve(key, before)
  for owner in head, key do
    if owner == before then break end
    local claim, held = placeOf(key, owner), standing(key)
    if not fits(held, claim) then break end
    leave(key, owner)
    local ttl = math.min(claim.place, claim.ttl)
    tellGrant(key, claim, grant(key, claim, held, ttl), whole(ttl))
  end
end

-- Leaves beside the key what whoever comes next has to know of its line and note: nothing, if there is neither; to whom it
-- goes next, if that one wants it alone and has no further wishes (quick-release.lua); else, to take the long way. A token is
-- put aside for the heir, larger than that of who holds it: the least it gets, if the clock goes back until then.
local function mark(key)
  local first, noted = call('ZRANGE', key.line, 0, 0)[1], call('EXISTS', key.note) == 1
  if not first then
    call('DEL', key.heir)
    if noted then call('HSET', index, key.more, 'more') else call('HDEL', index, key.more) end
    return
  end
  call('HSET', index, key.more, 'more')
  local holder, odd = content(key.plain)
  local ttl, place, ear = string.match(call('HGET', key.places, first), '^2147483647:2147483647:(%d+):(%d+):(%w+)::$')
  local heir = 'more'
  if ttl and holder and not odd and not noted then
    local given = whole(math.min(ttl, place))
    local least = digits(mint(tonumber(ttl)))
    heir = table.concat({ holder, given .. ' ' .. addressOf(key, ear), least, letterOf(key, first, given) }, '\0')
  end
  call('SET', key.heir, heir, 'PX', whole(math.max(call('ZSCORE', key.till, first) - now, 1)))
end

-- Who was handed it by quick-release.lua, nobody having come the long way since; and sees to it that its token is remembered.
local function settle(key)
  local known = call('HMGET', index, '', key.plain, key.more)
  if known[3] ~= 'handed' then return nil end
  local token, owner = string.match(known[2] or '', '^(%d+):(.*)$')
  if token and tonumber(token) > (tonumber(known[1]) or 0) then call('HSET', index, '', token) end
  return owner or ''
end

-- The names of a key, its line in order: who was handed it by quick-release.lua does not wait any more.
local function open(plain)
  local key = keyOf(plain)
  local owner = settle(key)
  if owner then
    leave(key, owner)
    mark(key)
  end
  return key
end
