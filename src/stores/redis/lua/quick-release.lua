-- quick-release.lua   the usual case of release.lua: a lone exclusive lease of which nothing else is known
local mine = #KEYS == 2 and redis.pcall('GET', KEYS[2]) == ARGV[1]
if mine and redis.call('HDEL', KEYS[1], KEYS[2], KEYS[2] .. '\0') < 2 then
  redis.call('DEL', KEYS[2])
  return 1
end
