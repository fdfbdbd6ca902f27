-- knock.lua   KEYS mailbox      ends the wait of whoever waits for mail there: with an empty letter
-- → 1
redis.call('RPUSH', KEYS[1], '')
redis.call('PEXPIRE', KEYS[1], 5000)
return 1
