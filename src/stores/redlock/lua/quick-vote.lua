-- quick-vote.lua   round 1 for locks that nobody holds; from the first other item on, vote.lua goes on
-- ARGV run nodes maxTtlMs, then per item 2: owner, ttlMs with ' read' or ' steal' behind it or neither
local QUICK = redis.call
local self = QUICK('HMGET', KEYS[1], 'run', 'state', 'nodes', 'counter', 'longest')
local actual = string.match(QUICK('INFO', 'server'), 'run_id:(%x+)')
if actual ~= ARGV[1] then return { 'stranger' } end
if self[1] ~= actual or self[2] ~= 'votes' then return { 'sits' } end
if self[3] ~= ARGV[2] then return { 'other' } end
if not self[5] or tonumber(self[5]) < tonumber(ARGV[3]) then QUICK('HSET', KEYS[1], 'longest', ARGV[3]) end

local at = QUICK('TIME')
local answers = { 'votes', self[4] or '0', at[1], at[2] }
local size = #KEYS - 1
local next = 1
while next <= size do
  local a = 2 * next + 2
  -- False: somebody holds it, perhaps we. An error: a key of another type, and for vote.lua to explain.
  local set = tonumber(ARGV[a + 1]) and redis.pcall('SET', KEYS[next + 1], ARGV[a], 'PX', ARGV[a + 1], 'NX')
  if not set or set.err then break end
  next = next + 1
end
if next > size then return answers end
