-- release.lua   gives back what is mine, and nothing else; on a node of any standing
-- KEYS record, then plain…      ARGV quiet (0 or 1 per item), then owner…
-- → item… (none: all released, and nobody listens)     item: 1 + how many were told: released | 0 not mine | { 2, error }
local call = redis.call
local size = #KEYS - 1
if #ARGV ~= 1 + size or #ARGV[1] ~= size then
  return redis.error_reply('ERR leasehold: release.lua takes 1 argument and 1 per key')
end

-- fast path: exclusive locks that are all still mine, each once
local bare = #KEYS[1] - #'leasehold:redlock' + 1
local channels, fields, seen = {}, {}, {}
-- An error: a key that we have no right to. The others must not suffer.
local found = redis.pcall('MGET', unpack(KEYS, 2))
local quick = not found.err
for i, mine in ipairs(found) do
  local plain = KEYS[i + 1]
  if mine ~= ARGV[i + 1] or seen[plain] then
    quick = false
    break
  end
  seen[plain] = true
  local name = string.sub(plain, bare)
  channels[i] = 'leasehold:redlock:wakeup:' .. name
  fields[i] = ':' .. name
end
if quick then
  local listeners = call('PUBSUB', 'NUMSUB', unpack(channels))
  call('DEL', unpack(KEYS, 2))
  local answers, awaited = {}, false
  for i = 1, size do
    local heard = string.sub(ARGV[1], i, i) == '0' and listeners[2 * i] or 0
    answers[i] = 1 + heard
    if heard > 0 then
      awaited = true
      local announced = string.find(call('HGET', KEYS[1], fields[i]) or '', '^%d+:%d+:%d+:1:')
      call('PUBLISH', channels[i], heard .. (announced and ' ended ' or ' freed ') .. ARGV[i + 1])
    end
  end
  call('HDEL', KEYS[1], unpack(fields))
  return awaited and answers or {}
end
-- end of the fast path

-- include common.lua

local function release(plain, a)
  local readers, info = sides(plain)
  local owner, quiet = ARGV[a], string.sub(ARGV[1], a - 1, a - 1) == '1'
  local holder = dropEnded(plain, readers, info)
  if not holder or not isMine(holder, readers, owner) then return 0 end
  local _, _, _, _, announced = read(plain, info, owner, holder == SHARED)
  if holder == SHARED then
    call('ZREM', readers, owner)
    call('HDEL', info, owner)
  end
  if holder == SHARED and call('EXISTS', readers) == 1 then
    align(plain, readers, info)
  else
    call('DEL', plain, readers, info)
    call('HDEL', KEYS[1], ':' .. nameOf(plain))
  end
  if quiet then return 1 end
  return 1 + notify(plain, (announced == '1' and 'ended ' or 'freed ') .. owner)
end

return each(1, size, 1, 1, release, {})
