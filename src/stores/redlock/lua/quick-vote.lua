-- quick-vote.lua   round 1 for locks that nobody holds; from the first other item on, vote.lua goes on
-- ARGV expected (run id nodes), then per item 3: owner ttlMs kind (lock, read, steal)
local QUICK = redis.call
-- counter expected verified
local card = QUICK('GET', KEYS[1] .. ':card') or ' '
local from = string.find(card, ' ', 1, true)
local till = from + #ARGV[1]
local saved = redis.pcall('LASTSAVE')
local slow = string.sub(card, from + 1, till) ~= ARGV[1] or type(saved) ~= 'number' or saved >= tonumber(string.sub(card, till + 2))
local size = #KEYS - 1
local next = 1
local answers
if not slow then
  local at = QUICK('TIME')
  answers = { 'votes', string.sub(card, 1, from - 1), at[1], at[2] }
  while next <= size do
    local a = 3 * next - 1
    local set = ARGV[a + 2] == 'lock' and redis.pcall('SET', KEYS[next + 1], ARGV[a], 'PX', ARGV[a + 1], 'NX')
    if not set or set.err then break end
    answers[next + 4] = 1
    next = next + 1
  end
  if next > size then return answers end
end
