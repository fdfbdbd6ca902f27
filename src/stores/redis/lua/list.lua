-- list.lua   KEYS directory  ARGV from to                → the indexes in use, in their order
--            KEYS index      ARGV cursor pattern count   → [cursor, plain…], one page of the plain keys that match
if #ARGV == 2 then return redis.call('ZRANGE', KEYS[1], ARGV[1], ARGV[2]) end
local page = redis.call('HSCAN', KEYS[1], ARGV[1], 'MATCH', ARGV[2], 'COUNT', ARGV[3])
local answer = { page[1] }
for i = 1, #page[2], 2 do
  local field = page[2][i]
  if field ~= '' and string.sub(field, -1) ~= '\0' then answer[#answer + 1] = field end
end
return answer
