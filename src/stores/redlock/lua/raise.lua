-- raise.lua   round 2: where the key is still mine, the counter becomes at least the token
-- ARGV per item 6: owner token ttlMs endsAt news (none, taken, changed) value
-- → item…     item: 1 raised | 0 not mine | { 2, error }
-- On a node of any standing: that the key is mine proves that it remembers my vote, and so everything before it.
local raised = '0'

local function raise(plain, a)
  local readers, info = sides(plain)
  local owner, token, ends, news, value = ARGV[a], ARGV[a + 1], ARGV[a + 3], ARGV[a + 4], ARGV[a + 5]
  local holder = settle(plain, readers, info)
  if not holder or not isMine(holder, readers, owner) then return 0 end
  if tonumber(token) > tonumber(raised) then raised = token end
  local shared = holder == SHARED
  write(plain, info, owner, shared, entry(ends, token, '1', news == 'changed' and '1' or '0', value))
  if shared then call('HSET', INDEX, nameOf(plain), ends) end
  if news == 'changed' then ring(plain, 'changed ' .. owner .. ' 1') end
  -- Those who were about to ask need not.
  if news ~= 'none' and not shared then ring(plain, 'taken ' .. owner) end
  return 1
end

if not (quick and counter) then
  answers = each(1, size, 6, 0, raise, {})
  counter, rest = string.match(call('GET', CARD) or '', '^(%d+)(.*)$')
  local before = tonumber(counter or call('HGET', KEYS[1], 'counter') or 0)
  if tonumber(raised) > before then
    if counter then call('SET', CARD, raised .. rest) else call('HSET', KEYS[1], 'counter', raised) end
  end
end
-- Leases that ended without a release leave their names. Some are looked at now and then: the index stays about as small
-- as what is held. (Redis before 6.2 knows no HRANDFIELD, and keeps them until somebody lists.)
local sample = redis.pcall('HRANDFIELD', INDEX, 32 + 32 * size, 'WITHVALUES')
if not sample.err then
  for i = 1, #sample, 2 do
    local ends = string.match(sample[i + 1], '^%d+')
    if tonumber(ends) < now and call('EXISTS', PREFIX .. sample[i]) == 0 then call('HDEL', INDEX, sample[i]) end
  end
end
return answers
