-- release.lua   releases what is mine, and nothing else; on a node of any standing
-- KEYS record, then plain…      ARGV quiet (0 or 1 per item), then owner…
-- → item… (none: all released, and none has a subscriber)     item: 1 + the number of subscribers: released | 0 not mine | { 2, error }
-- Fast path: exclusive locks that are all still mine, each once. common.lua is included behind it.
local call = redis.call
local size = #KEYS - 1
if #ARGV ~= 1 + size or #ARGV[1] ~= size then
  return redis.error_reply('ERR leasehold: release.lua takes 1 argument and 1 per key')
end

-- fast path
local nameStart = #KEYS[1] - #'leasehold:redlock' + 1
-- A lone lease that nobody waits for needs none of the tables below.
if size == 1 and redis.pcall('GET', KEYS[2]) == ARGV[2] then
  local name = string.sub(KEYS[2], nameStart)
  if ARGV[1] == '1' or call('PUBSUB', 'NUMSUB', 'leasehold:redlock:wakeup:' .. name)[2] == 0 then
    call('DEL', KEYS[2])
    call('HDEL', KEYS[1], ':' .. name)
    return {}
  end
end
local channels, fields, seen = {}, {}, {}
-- An error: a key that this user has no right to. The long path answers each item on its own.
local found = redis.pcall('MGET', unpack(KEYS, 2))
local quick = not found.err
for i, mine in ipairs(found) do
  local plain = KEYS[i + 1]
  if mine ~= ARGV[i + 1] or seen[plain] then
    quick = false
    break
  end
  seen[plain] = true
  local name = string.sub(plain, nameStart)
  channels[i] = 'leasehold:redlock:wakeup:' .. name
  fields[i] = ':' .. name
end
if quick then
  local subscribers = call('PUBSUB', 'NUMSUB', unpack(channels))
  call('DEL', unpack(KEYS, 2))
  local answers, hasWaiters = {}, false
  for i = 1, size do
    local notified = string.sub(ARGV[1], i, i) == '0' and subscribers[2 * i] or 0
    answers[i] = 1 + notified
    if notified > 0 then
      hasWaiters = true
      -- Not that of an earlier owner, which a vote without a raise leaves behind.
      local text = call('HGET', KEYS[1], fields[i]) or ''
      local length, rest = string.match(text, '^%d+:%d+:%d+:1:(%d+):(.*)$')
      local announced = length and string.sub(rest, length + 1) == ARGV[i + 1]
      call('PUBLISH', channels[i], notified .. (announced and ' ended ' or ' freed ') .. ARGV[i + 1])
    end
  end
  call('HDEL', KEYS[1], unpack(fields))
  return hasWaiters and answers or {}
end
-- end of the fast path

-- include common.lua

local function release(plain, a)
  local readers, entries = sideKeys(plain)
  local owner, quiet = ARGV[a], string.sub(ARGV[1], a - 1, a - 1) == '1'
  local holder = dropExpired(plain, readers, entries)
  if not holder or not isMine(holder, readers, owner) then return 0 end
  local _, _, _, _, announced = readEntry(plain, entries, owner, holder == SHARED)
  if holder == SHARED then
    call('ZREM', readers, owner)
    call('HDEL', entries, owner)
  end
  if holder == SHARED and call('EXISTS', readers) == 1 then
    alignExpiration(plain, readers, entries)
  else
    call('DEL', plain, readers, entries)
    call('HDEL', KEYS[1], ':' .. nameOf(plain))
  end
  if quiet then return 1 end
  return 1 + notify(plain, (announced == '1' and 'ended ' or 'freed ') .. owner)
end

return runItems(1, size, 1, 1, release, {})
