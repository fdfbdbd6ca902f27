-- revoke.lua   nobody holds this key afterwards
-- KEYS record plain      → { shared, owner… } who was cut off; nothing: nobody
-- All in one step: whoever is left between two would be cut off without having been seen.
if #KEYS ~= 2 or #ARGV ~= 0 then return redis.error_reply('ERR leasehold: revoke.lua takes 2 keys and no argument') end

-- include common.lua

local plain = KEYS[2]
local holder = dropEnded(plain, sides(plain))
if not holder then return {} end
local owners = revoke(plain, holder)
notify(plain, 'freed ' .. owners[#owners])
table.insert(owners, 1, holder == SHARED and 1 or 0)
return owners
