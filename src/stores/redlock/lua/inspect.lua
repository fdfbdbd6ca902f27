-- inspect.lua   who holds one key; with '1', nobody does afterwards
-- ARGV revoke
-- → { key, owner, shared, ttlMs, token, version, heldMs, value }…
local plain = KEYS[2]
if ARGV[1] ~= '1' then return holders(plain) end
local found = cutOff(plain)
if #found > 0 then ring(plain, 'freed ' .. found[1][2]) end
return found
