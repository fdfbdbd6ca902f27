-- quick-acquire.lua   the usual case of acquire.lua, whose signature it shares: exclusive claims without further wishes, of
-- keys that nobody holds and nothing else is known of. Decided before the helpers of the long way are even defined, without
-- arithmetic (times of sixteen digits compare as text) and without a function, each of which would show in the price of
-- a lock. Stops at the first claim that is not as simple, or fails: the rest goes the long way, in its order.
if #ARGV ~= 3 * #KEYS - 1 then return redis.error_reply('ERR leasehold: acquire was called with ' .. #ARGV .. ' arguments') end
local call, try = redis.call, redis.pcall
local answers, done = {}, 0
local clock = call('TIME')
local text = clock[1] .. string.sub('00000' .. clock[2], -6)
-- One call in a hundred goes the long way in any case, and sweeps.
local sweeping = string.sub(text, -2) == '00'

-- It lay in a queue or a frozen server, and whoever asked has given up: nobody would know that it was granted.
local atomic = string.sub(ARGV[1], 1, 1) == '*'
local deadline = atomic and string.sub(ARGV[1], 2) or ARGV[1]
if deadline ~= '' and deadline < text then return '@' .. text end

if not atomic then
  local index, count = KEYS[1], #KEYS - 1
  for i = 1, count do
    if string.find(ARGV[3 * i + 1], ':', 1, true) then break end
    local plain, owner = KEYS[i + 1], ARGV[3 * i - 1]
    local known = try('HMGET', index, '', plain .. '\0')
    local last = known[1] or ''
    if known.err or known[2] or last >= text then break end
    local set = try('SET', plain, owner, 'NX', 'PX', ARGV[3 * i])
    if not set or set.err then break end
    call('HSET', index, '', text, plain, text .. ':' .. owner)
    -- The index outlives its last use by a day: prolonged every ten thousand seconds, not every time.
    if string.sub(last, 1, 6) ~= string.sub(text, 1, 6) and call('PTTL', index) < 100800000 then
      call('PEXPIRE', index, 100800000)
    end
    answers[i], done = text, i
    if i == count and not sweeping then return count == 1 and text or answers end
    text = string.format('%.0f', text + 1)
  end
end
