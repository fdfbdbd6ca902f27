-- time.lua   KEYS any key: it decides which server of a cluster answers
-- → the server's time in microseconds
local clock = redis.call('TIME')
return clock[1] * 1000000 + clock[2]
