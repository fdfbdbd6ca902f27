-- quick-release.lua   the usual cases of release.lua, whose signature it shares: a lone exclusive lease that nobody waits for,
-- or that goes to the heir who was named beforehand (`mark` in common.lua). Whoever waits is told when the script ends: what
-- is not done here is not waited for. So the place of whoever gets it stays in line until somebody comes the long way.
local PUBLISH = 'PUBLISH'
if #ARGV ~= (#KEYS == 2 and 2 or #KEYS - 1) then
  return redis.error_reply('ERR leasehold: release was called with ' .. #ARGV .. ' arguments')
end
if #KEYS == 2 then
  local call, try, index, plain, mine = redis.call, redis.pcall, KEYS[1], KEYS[2], ARGV[1]
  local known = try('MGET', plain, ARGV[2] .. 'heir')
  local heir = known[2]
  if known[1] == mine and not heir then
    if call('HEXISTS', index, plain .. '\0') == 0 then
      call('HDEL', index, plain)
      call('DEL', plain)
      return 1
    end
  elseif known[1] == mine and heir and string.sub(heir, 1, #mine + 1) == mine .. '\0' then
    local ttl, how, address, least, letter = string.match(heir, '^(%d+) ([>#])([^%z]*)%z(%d+)%z(.*)$', #mine + 2)
    local owner = ttl and string.sub(letter, 13, -#plain - 2)
    if ttl and try('SET', plain, owner, 'PX', ttl).ok then
      -- By the clock of now: what was written down may come from before a failover, and others have held it since.
      local clock = call('TIME')
      local token = clock[1] .. string.sub('00000' .. clock[2], -6)
      if token < least then token = least end
      call('HSET', index, plain, token .. ':' .. owner, plain .. '\0', 'handed')
      -- It is handed over also if nobody can be told: whoever waits asks again.
      if how == '>' then
        try('RPUSH', address, token .. letter)
        try('PEXPIRE', address, ttl)
      else
        try(PUBLISH, address, 'granted ' .. token .. letter)
      end
      return 1
    end
  end
end
