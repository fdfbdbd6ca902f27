-- raise.lua   round 2: where the key is still mine, the counter becomes at least the token
-- ARGV per item 6: owner token ttlMs endsAt news (none, taken, changed) value
-- → item…     item: 1 raised | 0 not mine | { 2, error }
-- On a node of any standing: that the key is mine proves that it remembers my vote, and so everything before it.

local function raise(plain, a)
  local readers, info = sides(plain)
  local owner, token, ttl, news, value = ARGV[a], ARGV[a + 1], ARGV[a + 2], ARGV[a + 4], ARGV[a + 5]
  local announce = news == 'changed' and '1' or '0'
  local holder = settle(plain, readers, info)
  if not holder or not isMine(holder, readers, owner) then return 0 end
  if tonumber(token) > tonumber(highest) then highest = token end
  if holder == SHARED then
    call('HSET', info, owner, entry(token, '1', announce, value))
    ttl = call('PTTL', plain)
    call('PEXPIRE', info, whole(math.max(ttl, 1)))
  else
    call('SET', info, entry(token, '1', announce, value) .. owner, 'PX', ttl)
  end
  call('ZADD', KEYS[2], whole(now + ttl), nameOf(plain))
  if news == 'changed' then ring(plain, 'changed ' .. owner .. ' 1') end
  -- Those who were about to ask need not.
  if news ~= 'none' and holder ~= SHARED then ring(plain, 'taken ' .. owner) end
  return 1
end

each(next, size, 6, 0, raise, answers)
local counter, rest = string.match(call('GET', CARD) or '', '^(%d+)(.*)$')
counter = tonumber(counter or call('HGET', KEYS[1], 'counter') or 0)
if tonumber(highest) > counter then
  if rest then call('SET', CARD, highest .. rest) else call('HSET', KEYS[1], 'counter', highest) end
end
-- Leases that ended without a release leave their names. Some go now and then, so the index stays about as small as what is held.
local ended = call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, 32 + 32 * size)
if #ended > 0 then call('ZREM', KEYS[2], unpack(ended)) end
return answers
