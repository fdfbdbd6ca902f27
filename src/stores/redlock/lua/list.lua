-- list.lua   who holds what, of all keys that begin with a prefix
-- ARGV prefix
-- → { key, owner, shared, ttlMs, token, version, heldMs, value }…
local found = {}
for _, field in ipairs(call('HKEYS', KEYS[1])) do
  if string.sub(field, 1, #ARGV[1] + 1) == ':' .. ARGV[1] then
    local here = holders(PREFIX .. string.sub(field, 2))
    for _, held in ipairs(here) do found[#found + 1] = held end
    if #here == 0 then call('HDEL', KEYS[1], field) end
  end
end
return found
