-- release.lua   KEYS index, then per lease: plain      ARGV per lease: owner; behind that of a lone one: what the names of
-- all that belongs to its key begin with
-- → per lease: 1 released | 0 gone | '!error'      (a lone answer is not in a list)

local function letGo(key, owner)
  local held = standing(key)
  if held and held.owner == owner then
    local announced = noteOf(key, held.token)
    clear(key)
    if announced then tell(key, 'changed') end
    return true
  end
  if held and held.total and call('HEXISTS', key.shares, '=' .. owner) == 1 then
    if dropShare(key, owner) == held.total then clear(key) else fitExpiry(key) end
    return true
  end
  head(key)
  -- On a replica this fails, as it must: what a replica does not know of is not gone for certain.
  return leave(key, owner)
end

local function release(i)
  local key = open(KEYS[i + 1])
  if not letGo(key, ARGV[i]) then return 0 end
  -- It is released, whatever comes of handing it on: the head of the line looks again by itself.
  pcall(serve, key)
  pcall(mark, key)
  return 1
end

local answers = {}
for i = 1, #KEYS - 1 do
  local ok, answer = pcall(release, i)
  answers[i] = ok and answer or failure(answer)
end
return #answers == 1 and answers[1] or answers
