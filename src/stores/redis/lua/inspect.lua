-- inspect.lua   KEYS index, then per key: plain (then all side keys, or none)      ARGV keys holders|all|revoke from count
-- → per key: [holders, waiting, waiters, more, shares, now] | '!error'
-- holders: [owner, weight, capacity, token, ttlMs, heldMs, value, foreign] each     waiters, only with all:
-- [owner, weight, capacity, waitedMs, value] each, in order     more: 1, there are more holders or waiters than `from` to
-- `from` + `count`     revoke: ends all leases, returns all of them, and lets the next in; shares, only with revoke: owner, end,
-- weight:capacity:token:flags:value of each, as they were written, in place of holders
-- INCLUDE common.lua

local keys, mode, from, most = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
-- Holders that one call returns for all its keys together.
local room = most

local function shareRows(key)
  local last = from + math.max(room, 1) - 1
  local ends = call('ZRANGE', key.expirations, from, last, 'WITHSCORES')
  local rows = {}
  for at = 1, #ends, 2 * PRUNE do
    local fields = {}
    for i = at, math.min(at + 2 * PRUNE - 1, #ends), 2 do fields[#fields + 1] = '=' .. ends[i] end
    for i, entry in ipairs(call('HMGET', key.shares, unpack(fields))) do
      local owner, ending = ends[at + 2 * i - 2], ends[at + 2 * i - 1]
      if entry then
        local one = unpackShare(entry)
        local since = whole(math.max(now - one.token / 1000, 0))
        rows[#rows + 1] = { owner, one.weight, one.capacity, one.token, whole(math.max(ending - now, 0)), since, one.value, 0 }
      end
    end
  end
  room = room - #rows
  return rows, call('ZCARD', key.expirations) > from + #ends / 2
end

local function holders(key, held)
  if not held then return {}, false end
  if held.total then return shareRows(key) end
  if from > 0 then return {}, false end
  local since = held.token and whole(math.max(now - held.token / 1000, 0)) or false
  local _, value = metadataOf(key, held.token)
  room = room - 1
  local ttl = call('PTTL', key.plain)
  return { { held.owner, ALL, ALL, held.token or false, ttl, since, value, held.foreign and 1 or 0 } }, false
end

local function waiters(key, waiting)
  local rows = {}
  if mode ~= 'all' or waiting <= from then return rows, false end
  local queue = call('ZRANGE', key.queue, from, from + most - 1, 'WITHSCORES')
  for at = 1, #queue, 2 * PRUNE do
    local owners = {}
    for i = at, math.min(at + 2 * PRUNE - 1, #queue), 2 do owners[#owners + 1] = queue[i] end
    for i, wants in ipairs(call('HMGET', key.waiters, unpack(owners))) do
      local weight, capacity, flags, value = string.match(wants or '', '^(%d+):(%d+):%d+:%d+:%w*:(%a*):(.*)$')
      local waited = whole(math.max(now - queue[at + 2 * i - 1] / 1000, 0))
      if weight then
        rows[#rows + 1] = { owners[i], weight, capacity, waited, string.find(flags, 'v', 1, true) and value }
      end
    end
  end
  return rows, waiting > from + most
end

local function inspect(plain)
  local key = prepareKey(plain)
  local held = pruneHolders(key)
  pruneQueue(key)
  if not held and key.entry then call('HDEL', index, plain) end
  local revoked, rows, more, shares = mode == 'revoke' and held, {}, false, {}
  if not revoked or not held.total then rows, more = holders(key, held) end
  if revoked then
    shares = evict(key, held)
    pcall(function() serve(key, nil, pruneQueue(key)) end)
    pcall(writeState, key)
  end
  local waiting = key.queued and call('ZCARD', key.queue) or 0
  local queue, further = waiters(key, waiting)
  return { rows, waiting, queue, (more or further) and 1 or 0, shares, whole(now) }
end

local answers = {}
for i = 1, keys do
  local ok, answer = pcall(inspect, KEYS[i + 1])
  answers[i] = ok and answer or failure(answer)
end
return answers
