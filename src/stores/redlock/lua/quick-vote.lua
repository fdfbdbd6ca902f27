-- quick-vote.lua   round 1 for locks that nobody holds; from the first other item on, vote.lua goes on
-- ARGV run nodes maxTtlMs, then per item 3: owner ttlMs kind (lock, read, steal)
local QUICK = redis.call
local self = QUICK('HMGET', KEYS[1], 'run', 'state', 'nodes', 'counter', 'longest')
local actual = string.match(QUICK('INFO', 'server'), 'run_id:(%x+)')
if actual ~= ARGV[1] then return { 'stranger' } end
if self[1] ~= actual or self[2] ~= 'votes' then return { 'sits' } end
if self[3] ~= ARGV[2] then return { 'other' } end
if not self[5] or tonumber(self[5]) < tonumber(ARGV[3]) then QUICK('HSET', KEYS[1], 'longest', ARGV[3]) end

local at = QUICK('TIME')
local answers = { 'votes', self[4] or '0', string.format('%.0f', at[1] * 1000000 + at[2]) }
local size = #KEYS - 2
local next = 1
while next <= size do
  local a = 3 * next + 1
  if ARGV[a + 2] ~= 'lock' then break end
  local plain, owner = KEYS[next + 2], ARGV[a]
  -- Answers what was there. A key of another type is an error, and for vote.lua to explain.
  local before = redis.pcall('GET', plain)
  if before and before ~= owner then break end
  if not before then
    local set = redis.pcall('SET', plain, owner, 'PX', ARGV[a + 1])
    if set.err then break end
  end
  answers[#answers + 1] = 1
  next = next + 1
end
if next > size then return answers end
