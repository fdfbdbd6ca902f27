-- index.lua   KEYS directory      ARGV index forMs      remembers that an index is in use, for those who list
-- → 1
local call = redis.call
local clock = call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
call('ZADD', KEYS[1], 'GT', string.format('%.0f', now + ARGV[2]), ARGV[1])
call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
local last = call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2]
if last then call('PEXPIREAT', KEYS[1], last) end
return 1
