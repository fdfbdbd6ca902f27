-- vote.lua   round 1: set if absent
-- ARGV run nodes maxTtlMs, then per item 2: owner, ttlMs with ' read' or ' steal' behind it or neither
-- → { 'votes', counter, seconds, micros, item… } (no item: all held) | { why not }     item: 1 held | { 0, owner, ttlMs, token, version, value } | { 2, error }

local function obstacle(holder, plain, readers, info)
  local owner, ttl = holder, nil
  if holder == SHARED then
    local last = call('ZRANGE', readers, -1, -1, 'WITHSCORES')
    owner, ttl = last[1], last[2] - now
  else
    ttl = call('PTTL', plain)
  end
  local token, _, version, value = read(plain, info, owner, holder == SHARED)
  return { 0, owner, ttl >= 0 and whole(ttl) or false, token or false, version or false, value and value ~= '' and value or false }
end

local function vote(plain, a)
  local readers, info = sides(plain)
  local owner = ARGV[a]
  local ttl = string.match(ARGV[a + 1], '^%d+')
  local reads = string.find(ARGV[a + 1], ' read', 1, true)
  local holder = settle(plain, readers, info)
  if holder and isMine(holder, readers, owner) then return 1 end
  if holder and string.find(ARGV[a + 1], ' steal', 1, true) then
    cutOff(plain)
    holder = false
  end
  if holder and not (reads and holder == SHARED) then return obstacle(holder, plain, readers, info) end
  if reads then
    -- Readers without their plain key hold nothing any more.
    if not holder then call('DEL', readers, info) end
    call('ZADD', readers, whole(now + ttl), owner)
    align(plain, readers, info)
  else
    call('SET', plain, owner, 'PX', ttl)
  end
  return 1
end

for i = 1, next - 1 do answers[i + 4] = 1 end
return each(next, size, 2, 3, vote, answers)
