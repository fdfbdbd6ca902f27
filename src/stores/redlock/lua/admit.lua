-- admit.lua   lets this node vote, or says that it has lost something
-- ARGV id as nodes, then manifest (founder) | counter longestMs (returner)
-- → 1 it votes | 0 it does not
local record = call('HMGET', KEYS[1], 'run', 'id', 'state', 'since', 'counter', 'longest', 'nodes')
-- Decided for what this node was before it was emptied or restarted: not for this one.
if record[1] ~= run() or record[2] ~= ARGV[1] then return 0 end
if record[3] == 'votes' then return record[7] == ARGV[3] and 1 or 0 end

local function let()
  call('HSET', KEYS[1], 'state', 'votes', 'nodes', ARGV[3], 'voter', record[1] .. ' ' .. ARGV[3])
  return 1
end

local as = ARGV[2]
if as == 'founder' then
  if record[3] ~= 'new' then return 0 end
  -- Tokens may be a little ahead of the clocks. If there were any before all nodes were emptied, they are smaller than this.
  call('HSET', KEYS[1], 'manifest', ARGV[4], 'counter', whole(micros + 1000000))
  return let()
end
if as == 'loser' then
  call('HSET', KEYS[1], 'state', 'lost')
  return 0
end
local longest = math.max(tonumber(ARGV[5]), tonumber(record[6] or 0))
if now - record[4] < longest then return 0 end
local counter = math.max(tonumber(ARGV[4]), tonumber(record[5] or 0))
call('HSET', KEYS[1], 'counter', whole(counter), 'longest', whole(longest))
return let()
