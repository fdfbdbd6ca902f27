-- raise.lua   round 2: where the key is still mine, the counter becomes at least the token
-- ARGV per item 3: owner token announce..value
-- → item… (none: all raised)     item: 1 raised | 0 not mine | { 2, error }
-- On a node of any standing: that the key is mine proves that it remembers my vote, and so everything before it.
local raised = '0'

local function raise(plain, a)
  local readers, info = sides(plain)
  local owner, token = ARGV[a], ARGV[a + 1]
  local holder = settle(plain, readers, info)
  if not holder or not isMine(holder, readers, owner) then return 0 end
  if tonumber(token) > tonumber(raised) then raised = token end
  announce(plain, info, owner, holder == SHARED, token, ARGV[a + 2])
  return 1
end

if not quick then
  answers = each(1, size, 3, 0, raise, {})
  if tonumber(raised) > tonumber(call('HGET', KEYS[1], 'counter') or 0) then call('HSET', KEYS[1], 'counter', raised) end
end
sweep(size)
return answers
