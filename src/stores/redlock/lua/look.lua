-- look.lua   who this node is, and how it stands; begins a record if there is none for this run of the server
-- ARGV id known maxTtlMs
-- → { run, id, state, ageMs, counter, longestMs, nodes, manifest }
local actual = run()
local record = call('HMGET', KEYS[1], 'run', 'state', 'longest', 'counter')
local voter, _, _, counter = readCard()
counter = counter or record[4]
-- A voter without its card has lost it, and with it the counter.
if record[1] ~= actual or (record[2] == 'votes' and voter ~= actual) then
  -- Anything at all from earlier, here or in the caller's memory, means that something may be missing.
  local state = (record[1] or counter or ARGV[2] == '1') and 'lost' or 'new'
  call('HSET', KEYS[1], 'run', actual, 'id', ARGV[1], 'state', state, 'since', whole(now), 'manifest', '', 'counter', counter or '0')
  call('DEL', CARD)
end
-- Whoever votes has looked before: so this is the longest lease that anybody here may hold.
if tonumber(record[3] or 0) < tonumber(ARGV[3]) then call('HSET', KEYS[1], 'longest', ARGV[3]) end
record = call('HMGET', KEYS[1], 'id', 'state', 'since', 'longest', 'nodes', 'manifest')
return {
  actual, record[1], record[2], whole(now - record[3]), counter or '0', record[4] or '0', record[5] or '0', record[6] or '',
}
