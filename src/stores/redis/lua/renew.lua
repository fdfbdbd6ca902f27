-- renew.lua   KEYS index, then per lease: plain      ARGV per lease: owner ttlMs value      value: '' or =value
-- → per lease: 1 ours | 0 gone | '!error'      (a lone answer is not in a list)

if #ARGV ~= 3 * (#KEYS - 1) then return redis.error_reply('ERR leasehold: renew was called with ' .. #ARGV .. ' arguments') end

local function renewShare(key, owner, ttl, value)
  local held = standing(key)
  if not held or not held.total then return 0 end
  local entry = call('HGET', key.shares, '=' .. owner)
  if not entry then return 0 end
  local ends = math.max(tonumber(call('ZSCORE', key.ends, owner)), now + ttl)
  call('ZADD', key.ends, whole(ends), owner)
  fitExpiry(key)
  if value then
    local one = unpackShare(entry)
    one.value = value
    local anew = table.concat({ one.weight, one.capacity, one.token, flagsOf(one), value }, ':')
    call('HSET', key.shares, '=' .. owner, anew)
    tell(key, 'changed')
  end
  return 1
end

local function renew(i)
  local plain, owner, ttl = KEYS[i + 1], ARGV[3 * i - 2], tonumber(ARGV[3 * i - 1])
  local value = ARGV[3 * i] ~= '' and string.sub(ARGV[3 * i], 2)
  local key = open(plain)
  if content(plain) ~= owner then
    if renewShare(key, owner, ttl, value) == 1 then return 1 end
    -- A write without effect. On a replica it fails, as it must: what a replica does not know of is not gone for certain.
    call('HDEL', index, '\0')
    return 0
  end
  local left = call('PTTL', plain)
  if left < ttl then
    call('PEXPIRE', plain, ARGV[3 * i - 1])
    if call('HEXISTS', index, key.more) == 1 then call('PEXPIRE', key.note, ARGV[3 * i - 1]) end
  end
  if value then
    local token = standing(key).token or '0'
    writeNote(key, { announce = noteOf(key, token), value = value }, token, whole(math.max(left, ttl)))
    tell(key, 'changed')
  end
  return 1
end

local answers, longest = {}, DAY
for i = 1, #KEYS - 1 do
  local ok, answer = pcall(renew, i)
  answers[i] = ok and answer or failure(answer)
  longest = math.max(longest, tonumber(ARGV[3 * i - 1]))
end
-- Leases that are renewed for days without a new one among them must not outlive the index.
local left = redis.pcall('PTTL', index)
if type(left) == 'number' and left >= 0 and left < longest + HOUR then
  redis.pcall('PEXPIRE', index, whole(longest + 4 * HOUR))
end
return #answers == 1 and answers[1] or answers
