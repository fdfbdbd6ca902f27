-- identify.lua   this node's record; begins one if there is none for this run of the server. No fast path.
-- KEYS record      ARGV id known format
-- → { run, id, state, ageMs, counter, longestMs, nodes, manifest, format }
if #KEYS ~= 1 or #ARGV ~= 3 then return redis.error_reply('ERR leasehold: identify.lua takes the record and 3 arguments') end

-- include common.lua

local actual = runId()
local before = call('HMGET', KEYS[1], 'run', 'counter', 'format')
local another = before[1] and before[3] ~= ARGV[3]
-- A record of another format is left alone: clients of the version that wrote it may be running.
if before[1] ~= actual and not another then
  -- Anything at all from earlier, here or in the caller's memory, means that something may be missing.
  local state = (before[1] or before[2] or ARGV[2] == '1') and 'lost' or 'new'
  call('HSET', KEYS[1], 'format', ARGV[3], 'run', actual, 'id', ARGV[1], 'state', state, 'since', whole(now), 'manifest', '')
end
local record = call('HMGET', KEYS[1], 'id', 'state', 'since', 'counter', 'longest', 'nodes', 'manifest', 'format')
return {
  actual, record[1] or '', record[2] or 'lost', whole(now - (record[3] or now)), record[4] or '0', record[5] or '0', record[6] or '0',
  record[7] or '', record[8] or '1',
}
