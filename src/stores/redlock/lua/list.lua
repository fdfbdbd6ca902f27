-- list.lua   who holds what, of all keys that begin with a prefix
-- ARGV prefix
-- → { key, owner, shared, ttlMs, token, version, heldMs, value }…
local found = {}
for _, name in ipairs(call('HKEYS', INDEX)) do
  if string.sub(name, 1, #ARGV[1]) == ARGV[1] then
    local here = holders(PREFIX .. name)
    for _, held in ipairs(here) do found[#found + 1] = held end
    if #here == 0 then call('HDEL', INDEX, name) end
  end
end
return found
