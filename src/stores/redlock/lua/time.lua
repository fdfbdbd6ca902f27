-- time.lua   the node's clock. No fast path.
-- KEYS record      → { micros }
-- The key is not used: some hosted servers refuse a script without one.
if #KEYS ~= 1 or #ARGV ~= 0 then return redis.error_reply('ERR leasehold: time.lua takes the record and no argument') end
local time = redis.call('TIME')
return { string.format('%.0f', time[1] * 1000000 + time[2]) }
