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
  local call, try, find, sub = redis.call, redis.pcall, string.find, string.sub
  local index, plain, entry = KEYS[1], KEYS[2], ARGV[1]
  local colon = find(entry, ':', 1, true)
  local mine, field = sub(entry, colon + 1), plain .. '\0'
  local known = try('GET', plain) == mine and try('HMGET', index, '', plain, field)
  if known and not known.err and known[1] and (colon == 1 or known[2] == entry) then
    local last, state = known[1], known[3]
    if not state then
      call('HDEL', index, plain)
      call('DEL', plain)
      return 1
    elseif sub(state, 1, 2) == 's-' then
      local clock = call('TIME')
      local token = clock[1] .. sub('00000' .. clock[2], -6)
      local ms = sub(token, 1, 13)
      -- Plain searches, few numbers: with a pattern and numbers out of text the script took a tenth longer where caches are cold.
      local space = find(state, ' ', 29, true)
      local stop = space and find(state, '\0', space, true)
      local behind = stop and stop + #mine + 1
      if stop and sub(state, stop, behind) == '\0' .. mine .. '\0' and sub(state, 16, 28) > ms then
        local reserve = sub(state, space - 1, space - 1) == '+'
        local ttl, message = sub(state, 29, reserve and space - 2 or space - 1), sub(state, behind + 1)
        local owner = sub(message, 1, -#plain - 2)
        if last >= token then token = string.format('%.0f', last + 1) end
        if try('SET', plain, owner, 'PX', ttl).ok then
          last = reserve and string.format('%.0f', token + TOKENS - 1) or token
          -- \0: MARK, so that the next renewal finishes the hand-off.
          call('HSET', index, '', last, plain, token .. ':' .. owner .. '\0', field, 'h' .. sub(state, 2, 15))
          message = token .. string.format('%.0f', ms + ttl) .. (reserve and '+' or '-') .. message
          local address = sub(state, space + 2, stop - 1)
          -- The hand-off stands also if the message fails: the waiter finds out when it renews its queue entry.
          if sub(state, space + 1, space + 1) == '>' then
            try('RPUSH', address, message)
            try('PEXPIRE', address, (#ttl < 5 or ttl < '60000' and #ttl == 5) and '60000' or ttl)
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
