-- raise.lua   round 2: where the key is still mine, the counter becomes at least the token
-- ARGV per item 5: owner token ttlMs announce value
-- → item…     item: 1 raised | 0 not mine | { 2, error }
-- On a node of any standing: that the key is mine proves that it remembers my vote, and so everything before it.

local function raise(plain, a)
  local readers, info = sides(plain)
  local owner, token, ttl, announce, value = ARGV[a], ARGV[a + 1], ARGV[a + 2], ARGV[a + 3], ARGV[a + 4]
  local holder = settle(plain, readers, info)
  if not holder or not isMine(holder, readers, owner) then return 0 end
  highest = math.max(highest, tonumber(token))
  if holder == SHARED then
    call('HSET', info, owner, entry(token, whole(now), '1', announce, value))
    ttl = call('PTTL', plain)
    call('PEXPIRE', info, whole(math.max(ttl, 1)))
  else
    call('SET', info, entry(token, whole(now), '1', announce, value) .. owner, 'PX', ttl)
  end
  call('ZADD', KEYS[2], whole(now + ttl), nameOf(plain))
  if announce == '1' then ring(plain, 'changed ' .. owner .. ' 1') end
  if holder ~= SHARED then ring(plain, 'taken ' .. owner) end
  return 1
end

each(next, size, 5, 0, raise, answers)
if highest > tonumber(call('HGET', KEYS[1], 'counter') or 0) then call('HSET', KEYS[1], 'counter', whole(highest)) end
-- Leases that ended without a release leave their names. Some go now and then, so the index stays about as small as what is held.
local ended = call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, 32 + 32 * size)
if #ended > 0 then call('ZREM', KEYS[2], unpack(ended)) end
return answers
