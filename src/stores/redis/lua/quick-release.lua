-- quick-release.lua   the usual cases of release.lua, whose signature it shares: a lone exclusive lease that nobody waits for,
-- or that goes to the heir who was named beforehand (`mark` in common.lua). Whoever waits is told when the script ends: what
-- is not done here is not waited for. So the place of whoever gets it stays in line until somebody comes the long way.
local PUBLISH = 'PUBLISH'
if #KEYS == 2 then
  local call, try, index, plain, mine = redis.call, redis.pcall, KEYS[1], KEYS[2], ARGV[1]
  local known = try('MGET', plain, ARGV[2] .. 'heir', ARGV[2] .. 'note')
  local heir = known[2]
  if known[1] == mine and not heir and not known[3] then
    -- More may be known of it than lies here, while a slot moves.
    if call('HDEL', index, plain, plain .. '\0') < 2 then
      call('DEL', plain)
      return 1
    end
  elseif known[1] == mine and heir and string.sub(heir, 1, #mine + 1) == mine .. '\0' then
    local ttl, how, address, letter = string.match(heir, '^(%d+) ([>#])([^%z]*)%z(.*)$', #mine + 2)
    local token, owner = string.sub(letter or '', 1, 16), string.sub(letter or '', 29, -#plain - 2)
    if ttl and try('SET', plain, owner, 'PX', ttl).ok then
      call('HSET', index, plain, token .. ':' .. owner, plain .. '\0', 'handed')
      -- It is handed over also if nobody can be told: whoever waits asks again.
      if how == '>' then
        try('RPUSH', address, letter)
        try('PEXPIRE', address, ttl)
      else
        try(PUBLISH, address, 'granted ' .. letter)
      end
      return 1
    end
  end
end
