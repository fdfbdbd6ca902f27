-- admit.lua   lets this node vote, or says that it has lost something
-- ARGV id as nodes, then manifest (founder) | counter longestMs (returner)
-- → 1 it votes | 0 it does not
local record = call('HMGET', KEYS[1], 'run', 'id', 'state', 'since', 'longest', 'nodes', 'counter')
local actual = run()
-- Decided for what this node was before it was emptied or restarted: not for this one.
if record[1] ~= actual or record[2] ~= ARGV[1] then return 0 end
if record[3] == 'votes' then return record[6] == ARGV[3] and readCard() == actual and 1 or 0 end

local as = ARGV[2]
local longest = tonumber(record[5] or 0)
local counter = tonumber(record[7] or 0)
if as == 'loser' then
  call('HSET', KEYS[1], 'state', 'lost')
  return 0
elseif as == 'founder' then
  if record[3] ~= 'new' then return 0 end
  call('HSET', KEYS[1], 'manifest', ARGV[4])
else
  longest = math.max(tonumber(ARGV[5]), longest)
  if now - record[4] < longest then return 0 end
  counter = math.max(tonumber(ARGV[4]), counter)
end
call('HSET', KEYS[1], 'state', 'votes', 'nodes', ARGV[3], 'longest', whole(longest))
writeCard(actual, ARGV[1], ARGV[3], whole(counter))
return 1
