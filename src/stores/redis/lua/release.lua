-- release.lua   KEYS index, then per lease: plain (then all side keys, or none)      ARGV per lease: token:owner
-- token: '' if it is not known: then a queue entry of the owner counts too
-- → per lease: 1 released | 0 gone | '!error'      (a lone answer is not in a list; 1 for several leases: all are released)
local count = #ARGV
if count < 1 or #KEYS < count + 1 or not string.find(ARGV[1], ':', 1, true) then
  return redis.error_reply('ERR leasehold: release was called with ' .. #KEYS .. ' keys and ' .. #ARGV .. ' arguments')
end

-- FAST PATH of a lone release: an exclusive lease that nobody waits for, or whose successor was cached beforehand (`writeState` in
-- common.lua). Replies leave when the script ends, so every command here adds to the time of a hand-off: the queue entry of
-- the successor stays until a script takes the slow path (`finishHandoff`). Without a cached state no other key than
-- the two declared ones is touched: while a slot moves, a missing key is an error.
local FAST = true
local TOKENS = 32
local PUBLISH = 'PUBLISH'
if FAST and count == 1 then
  local call, try, index, plain, entry = redis.call, redis.pcall, KEYS[1], KEYS[2], ARGV[1]
  local colon = string.find(entry, ':', 1, true)
  local mine = string.sub(entry, colon + 1)
  local known = try('GET', plain) == mine and try('HMGET', index, '', plain, plain .. '\0') or { err = 'not ours' }
  local state = known[3]
  if not known.err and known[1] and (colon == 1 or known[2] == entry) then
    if not state then
      call('HDEL', index, plain)
      call('DEL', plain)
      return 1
    elseif string.sub(state, 1, 2) == 's-' then
      local clock = call('TIME')
      local token = clock[1] .. string.sub('00000' .. clock[2], -6)
      local ms = string.sub(token, 1, 13)
      local _, stop, ttl, reserve, how, address = string.find(state, '^(%d+)(%+?) ([>#])([^%z]*)%z', 29)
      if stop and string.sub(state, stop + 1, stop + #mine + 1) == mine .. '\0' and string.sub(state, 16, 28) > ms then
        local message = string.sub(state, stop + #mine + 2)
        local owner = string.sub(message, 1, -#plain - 2)
        if known[1] >= token then token = string.format('%.0f', known[1] + 1) end
        if try('SET', plain, owner, 'PX', ttl).ok then
          local last = reserve == '' and token or string.format('%.0f', token + TOKENS - 1)
          call('HSET', index, '', last, plain, token .. ':' .. owner, plain .. '\0', 'h' .. string.sub(state, 2, 15))
          message = token .. string.format('%.0f', ms + ttl) .. (reserve == '' and '-' or '+') .. message
          -- The hand-off stands also if the message fails: the waiter finds out when it renews its queue entry.
          if how == '>' then
            try('RPUSH', address, message)
            try('PEXPIRE', address, ttl + 0 > 60000 and ttl or 60000)
          else
            try(PUBLISH, address, 'granted ' .. message)
          end
          return 1
        end
      end
    end
  end
end

-- FAST PATH of a batch: exclusive leases that nobody waits for, all of them in four commands. The others take the slow path
-- behind it, and with them all that follow for the same key: a release that found its lease must not be overtaken.
local unpack = unpack or table.unpack
local answers = {}
if FAST and count > 1 then
  local try, plains, fields = redis.pcall, {}, { '' }
  for i = 1, count do
    local plain = KEYS[i + 1]
    plains[i], fields[2 * i], fields[2 * i + 1] = plain, plain, plain .. '\0'
  end
  local held, known = try('MGET', unpack(plains)), try('HMGET', KEYS[1], unpack(fields))
  local ended, size, slowed = {}, 0, {}
  for i = 1, known[1] and not held.err and count or 0 do
    local plain, entry = plains[i], ARGV[i]
    local simple = known[2 * i] == entry and not known[2 * i + 1] and not slowed[plain]
    if simple and held[i] == string.sub(entry, string.find(entry, ':', 1, true) + 1) then
      size = size + 1
      ended[size], answers[i] = plain, 1
    else slowed[plain] = true end
  end
  local deleted = size > 0 and try('DEL', unpack(ended))
  if type(deleted) == 'table' then answers = {} end
  if type(deleted) == 'number' then
    redis.call('HDEL', KEYS[1], unpack(ended))
    if deleted == count then return 1 end
    -- A lease that is there twice ends once.
    local seen = {}
    for i = 1, deleted < size and count or 0 do
      if seen[plains[i]] then answers[i] = nil end
      if answers[i] then seen[plains[i]] = true end
    end
  end
end

-- INCLUDE common.lua

local function endLease(key, owner, token)
  local held = pruneHolders(key)
  if held and held.owner == owner and not held.lost then
    -- Without the index the token is not known. A later grant would have written it.
    if token ~= '' and held.token and held.token ~= token then return false end
    local announced = metadataOf(key, held.token)
    deleteLease(key, held)
    if announced then tell(key, 'changed') end
    return true
  end
  local entry = held and held.total and call('HGET', key.shares, '=' .. owner)
  if entry then
    if token ~= '' and unpackShare(entry).token ~= token then return false end
    if dropShare(key, owner).weight == held.total then deleteLease(key, held) else fitExpiry(key) end
    return true
  end
  if held and held.lost then moving() end
  if token ~= '' then return false end
  pruneQueue(key)
  return key.queued and leaveQueue(key, owner)
end

local function release(i)
  local key = prepareKey(KEYS[i + 1])
  local token, owner = string.match(ARGV[i], '^(%d*):(.*)$')
  if not endLease(key, owner, token) then return gone() end
  -- The lease is released, whether the hand-off works or not: the first waiter asks again by itself.
  if key.queued then pcall(function() serve(key, pruneHolders(key), pruneQueue(key)) end) end
  pcall(writeState, key)
  return 1
end

for i = 1, count do
  if not answers[i] then
    local ok, answer = pcall(release, i)
    answers[i] = ok and answer or failure(answer)
  end
end
return count == 1 and answers[1] or answers
