-- probe.lua   KEYS inbox      ends the BLMPOP of the connection that is blocked on it, with an empty message
-- → 1
redis.call('RPUSH', KEYS[1], '')
redis.call('PEXPIRE', KEYS[1], 5000)
return 1
