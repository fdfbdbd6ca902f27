-- renew.lua   more time; never creates, never shortens. No fast path.
-- KEYS record, then plain…      ARGV run nodes, then per item 5: owner ttlMs token version value
-- → { standing, item… }     item: 1 ours | 0 absent | 3 taken | { 2, error }
-- Also on a node that sits out: a lease that it still has must not be missing when it votes again.
local size = #KEYS - 1
if #ARGV ~= 2 + 5 * size then return redis.error_reply('ERR leasehold: renew.lua takes 2 arguments and 5 per key') end

-- include common.lua

local function renew(plain, a)
  local readers, entries = sideKeys(plain)
  local owner, ttl, token, version, value = ARGV[a], tonumber(ARGV[a + 1]), ARGV[a + 2], ARGV[a + 3], ARGV[a + 4]
  local holder = dropExpired(plain, readers, entries)
  if not holder then return 0 end
  if not isMine(holder, readers, owner) then return holder == SHARED and 0 or 3 end
  local shared = holder == SHARED
  if shared then
    local expiration = now + ttl
    if tonumber(call('ZSCORE', readers, owner)) < expiration then call('ZADD', readers, whole(expiration), owner) end
    alignExpiration(plain, readers, entries)
  else
    local left = call('PTTL', plain)
    if left >= 0 and left < ttl then call('PEXPIRE', plain, whole(ttl)) end
  end
  if value ~= '' then
    local known, since, older, _, announce = readEntry(plain, entries, owner, shared)
    if tonumber(version) > tonumber(older or 0) then
      -- The holder knows its token. The token in this node's entry may be a guess that was not accepted.
      writeEntry(plain, entries, owner, shared, formatEntry(token ~= '0' and token or known or '0', since or whole(now), version, announce or '0', value))
      notify(plain, 'changed ' .. owner .. ' ' .. version)
    end
  end
  return 1
end

return runItems(1, size, 5, 2, renew, { standing(ARGV[1], ARGV[2]) })
