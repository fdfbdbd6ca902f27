-- list.lua   who holds what, of all keys that begin with a prefix
-- ARGV prefix
-- → { key, owner, shared, ttlMs, token, version, heldMs, value }…
local found = {}
call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
for _, name in ipairs(call('ZRANGE', KEYS[2], 0, -1)) do
  if string.sub(name, 1, #ARGV[1]) == ARGV[1] then
    for _, held in ipairs(holders(PREFIX .. name)) do found[#found + 1] = held end
  end
end
return found
