-- release.lua   KEYS index, then per lease: plain (then all side keys, or none)      ARGV per lease: owner token
-- token: '' if it is not known: then a queue entry of the owner counts too
-- → per lease: 1 released | 0 gone | '!error'      (a lone answer is not in a list)
local count = #ARGV / 2
if count < 1 or count % 1 ~= 0 or #KEYS < count + 1 then
  return redis.error_reply('ERR leasehold: release was called with ' .. #KEYS .. ' keys and ' .. #ARGV .. ' arguments')
end

-- FAST PATH: a lone exclusive lease that nobody waits for, or that goes to the successor who was written down beforehand
-- (`writeState` in common.lua). Replies leave when the script ends, so every command here adds to the time of a hand-off: the
-- queue entry of the successor is left where it is until somebody comes the slow path. Without a state no other key than
-- the two declared ones is touched: while a slot moves, a missing key is an error.
local FAST = true
local PUBLISH = 'PUBLISH'
if FAST and count == 1 then
  local call, try, index, plain, mine = redis.call, redis.pcall, KEYS[1], KEYS[2], ARGV[1]
  local known = try('GET', plain) == mine and try('HMGET', index, '', plain, plain .. '\0') or { err = 'not ours' }
  local state = known[3]
  if not known.err and known[1] and (ARGV[2] == '' or known[2] == ARGV[2] .. ':' .. mine) then
    if not state then
      call('HDEL', index, plain)
      call('DEL', plain)
      return 1
    elseif string.sub(state, 1, 2) == 's-' then
      local clock = call('TIME')
      local token = clock[1] .. string.sub('00000' .. clock[2], -6)
      local ms = string.sub(token, 1, 13)
      local _, stop, ttl, how, address = string.find(state, '^(%d+) ([>#])([^%z]*)%z', 29)
      if stop and string.sub(state, stop + 1, stop + #mine + 1) == mine .. '\0' and string.sub(state, 16, 28) > ms then
        local message = string.sub(state, stop + #mine + 2)
        local owner = string.sub(message, 1, -#plain - 2)
        if known[1] >= token then token = string.format('%.0f', known[1] + 1) end
        if try('SET', plain, owner, 'PX', ttl).ok then
          call('HSET', index, '', token, plain, token .. ':' .. owner, plain .. '\0', 'h' .. string.sub(state, 2, 15))
          message = token .. string.format('%.0f', ms + ttl) .. message
          -- It is handed on also if nobody can be told: the waiter finds out when it renews its queue entry.
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

-- INCLUDE common.lua

local function letGo(key, owner, token)
  local held = standing(key)
  if held and held.owner == owner and not held.lost then
    -- Without the index the token is not known. A later grant would have written it.
    if token ~= '' and held.token and held.token ~= token then return false end
    local announced = metadataOf(key, held.token)
    clear(key, held)
    if announced then tell(key, 'changed') end
    return true
  end
  local entry = held and held.total and call('HGET', key.shares, '=' .. owner)
  if entry then
    if token ~= '' and unpackShare(entry).token ~= token then return false end
    if dropShare(key, owner).weight == held.total then clear(key, held) else fitExpiry(key) end
    return true
  end
  if held and held.lost then moving() end
  if token ~= '' then return false end
  head(key)
  return key.queued and leave(key, owner)
end

local function release(i)
  local key = open(KEYS[i + 1])
  if not letGo(key, ARGV[2 * i - 1], ARGV[2 * i]) then return gone() end
  -- It is released, whatever comes of handing it on: the first in the queue asks again by itself.
  if key.queued then pcall(function() serve(key, standing(key), head(key)) end) end
  pcall(writeState, key)
  return 1
end

local answers = {}
for i = 1, count do
  local ok, answer = pcall(release, i)
  answers[i] = ok and answer or failure(answer)
end
return count == 1 and answers[1] or answers
