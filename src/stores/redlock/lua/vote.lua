-- vote.lua   round 1: set if absent, and if the token is good, raise the counter to it
-- ARGV voter maxTtlMs token aloud, then per item 2: owner terms
-- terms: ttlMs[ read][ steal][=announce..value]
-- → { 'votes', counter, micros, raised, item… } (no item: all are held) | { why not }
-- counter: with what this batch raised, since a steal may come behind its victim
-- item: 1 held | 3 held and raised | { 0, owner, ttlMs, token, version, value } | { 2, error }

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
  local ttl, how, note = string.match(ARGV[a + 1], '^(%d+)([^=]*)=?(.*)$')
  local reads, steals = string.find(how, 'read', 1, true), string.find(how, 'steal', 1, true)
  local holder = settle(plain, readers, info)
  if holder and isMine(holder, readers, owner) then return 1 end
  -- Nothing behind a steal is raised either: a reader beside a stealing reader would get the token of the victim.
  if steals then raises = false end
  if holder and steals then
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
  if not raises then return 1 end
  call('HSET', KEYS[1], 'counter', ARGV[3])
  answers[2] = ARGV[3]
  announce(plain, info, owner, reads, ARGV[3], note == '' and '0' or note)
  return 3
end

for i = 1, next - 1 do answers[i + 4] = raises and 3 or 1 end
each(next, size, 2, 4, vote, answers)
if token % 16 == 0 then sweep(size) end
return answers
