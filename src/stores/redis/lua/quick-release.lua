-- quick-release.lua   the usual cases of release.lua, whose signature it shares: a lone exclusive lease that nobody waits for,
-- or that goes to the one whose name was left beside it (`mark` in common.lua). Whoever waits is told when the script ends:
-- what is not done here is not waited for. So the place of whoever gets it stays in line until somebody comes the long way.
local PUBLISH = 'PUBLISH'
if #KEYS == 2 and redis.pcall('GET', KEYS[2]) == ARGV[1] then
  local call, try, index, plain = redis.call, redis.pcall, KEYS[1], KEYS[2]
  local known = try('HMGET', index, '', plain .. '\0')
  local last, heir = known[1], known[2]
  if not heir and not known.err then
    call('HDEL', index, plain)
    call('DEL', plain)
    return 1
  end
  local ends, ttl, how, address, owner = string.match(heir or '', '^(%d+) (%d+) ([>#])([^%z]*)%z(.*)$')
  if ends and last then
    local clock = call('TIME')
    local text = clock[1] .. string.sub('00000' .. clock[2], -6)
    -- Not to somebody dead, by a clock that went back, or when it is time to prolong the index.
    local simple = ends > string.sub(text, 1, 13) and last < text and string.sub(last, 1, 6) == string.sub(text, 1, 6)
    if simple and try('SET', plain, owner, 'PX', ttl).ok then
      call('HSET', index, '', text, plain, text .. ':' .. owner, plain .. '\0', 'handed')
      -- It is handed over also if nobody can be told: whoever waits asks again.
      if how == '>' then
        try('RPUSH', address, text .. string.format('%012d', ttl) .. owner .. '\0' .. plain)
        try('PEXPIRE', address, ttl)
      else
        try(PUBLISH, address, 'granted ' .. text .. ' ' .. ttl .. ' ' .. owner)
      end
      return 1
    end
  end
end
