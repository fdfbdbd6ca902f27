-- revoke.lua   ends all leases of one key. No fast path.
-- KEYS record plain      → { shared, owner… } the owners that were cut off; nothing: there were none
-- All in one step: an owner that came between two steps would be cut off without being reported.
if #KEYS ~= 2 or #ARGV ~= 0 then return redis.error_reply('ERR leasehold: revoke.lua takes 2 keys and no argument') end

-- include common.lua

local plain = KEYS[2]
local holder = dropExpired(plain, sideKeys(plain))
if not holder then return {} end
local owners = cutOff(plain, holder)
notify(plain, 'freed ' .. owners[#owners])
table.insert(owners, 1, holder == SHARED and 1 or 0)
return owners
