-- look.lua   who this node is, and how it stands; begins a record if there is none for this run of the server
-- ARGV id known
-- → { run, id, state, ageMs, counter, longestMs, nodes, manifest }
local actual = run()
local before = call('HMGET', KEYS[1], 'run', 'counter')
if before[1] ~= actual then
  -- Anything at all from earlier, here or in the caller's memory, means that something may be missing.
  local state = (before[1] or before[2] or ARGV[2] == '1') and 'lost' or 'new'
  call('HSET', KEYS[1], 'run', actual, 'id', ARGV[1], 'state', state, 'since', whole(now), 'manifest', '')
end
local record = call('HMGET', KEYS[1], 'id', 'state', 'since', 'counter', 'longest', 'nodes', 'manifest')
return {
  actual, record[1], record[2], whole(now - record[3]), record[4] or '0', record[5] or '0', record[6] or '0', record[7] or '',
}
