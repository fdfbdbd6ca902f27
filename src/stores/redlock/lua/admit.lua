-- admit.lua   lets this node vote, or writes down that it has lost something. No fast path.
-- KEYS record      ARGV id as nodes format, then manifest (founder) | counter longestMs (returner) | nothing (loser)
-- → 1 it votes | 0 it does not
local wanted = { founder = 5, returner = 6, loser = 4 }
if #KEYS ~= 1 or #ARGV ~= wanted[ARGV[2]] then
  return redis.error_reply('ERR leasehold: admit.lua takes the record, and 5, 6 or 4 arguments')
end

-- include common.lua

local record = call('HMGET', KEYS[1], 'run', 'id', 'state', 'since', 'counter', 'longest', 'nodes', 'format')
-- The admission was decided for the record of before this node was emptied or restarted: it does not apply.
if record[1] ~= runId() or record[2] ~= ARGV[1] or record[8] ~= ARGV[4] then return 0 end
if record[3] == 'votes' then return record[7] == ARGV[3] and 1 or 0 end

local function admit()
  local voter = record[1] .. ' ' .. ARGV[3] .. ' ' .. ARGV[4]
  call('HSET', KEYS[1], 'state', 'votes', 'nodes', ARGV[3], 'voter', voter)
  return 1
end

local as = ARGV[2]
if as == 'founder' then
  if record[3] ~= 'new' then return 0 end
  -- Tokens may be a little ahead of the clocks. Tokens of before all nodes were emptied, if any, are smaller than this.
  call('HSET', KEYS[1], 'manifest', ARGV[5], 'counter', whole(micros + 1000000))
  return admit()
end
if as == 'loser' then
  call('HSET', KEYS[1], 'state', 'lost')
  return 0
end
local longest = math.max(tonumber(ARGV[6]), tonumber(record[6] or 0))
if now - record[4] < longest then return 0 end
local counter = math.max(tonumber(ARGV[5]), tonumber(record[5] or 0))
call('HSET', KEYS[1], 'counter', whole(counter), 'longest', whole(longest))
return admit()
