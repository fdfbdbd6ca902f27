-- list.lua   KEYS directory  ARGV cursor count           → [cursor, index…], one page of the indexes in use
--            KEYS index      ARGV cursor pattern count   → [cursor, plain…], one page of the plain keys that match
-- Not by rank: another process that uses an index moves it to the end, and the next page would leave out as many others.
if #ARGV == 2 then
  local found = redis.call('ZSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
  local indexes = { found[1] }
  for i = 1, #found[2], 2 do indexes[#indexes + 1] = found[2][i] end
  return indexes
end
local page = redis.call('HSCAN', KEYS[1], ARGV[1], 'MATCH', ARGV[2], 'COUNT', ARGV[3])
local answer = { page[1] }
for i = 1, #page[2], 2 do
  local field = page[2][i]
  if field ~= '' and string.sub(field, -1) ~= '\0' then answer[#answer + 1] = field end
end
return answer
