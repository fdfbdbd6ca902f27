-- release.lua   gives back what is mine, and nothing else; on a node of any standing
-- ARGV quiet (0 or 1 per item), then owner…
-- → item… (none: all released, and nobody listens)     item: 1 + how many listen: released | 0 not mine | { 2, error }

local function release(plain, a)
  local readers, info = sides(plain)
  local owner, quiet = ARGV[a], string.sub(ARGV[1], a - 1, a - 1) == '1'
  local holder = settle(plain, readers, info)
  if not holder or not isMine(holder, readers, owner) then return 0 end
  local _, _, _, _, announced = read(plain, info, owner, holder == SHARED)
  if holder == SHARED then
    call('ZREM', readers, owner)
    call('HDEL', info, owner)
  end
  if holder == SHARED and call('EXISTS', readers) == 1 then
    align(plain, readers, info)
  else
    call('DEL', plain, readers, info)
    call('HDEL', KEYS[1], ':' .. nameOf(plain))
  end
  if quiet then return 1 end
  return 1 + ring(plain, (announced == '1' and 'ended ' or 'freed ') .. owner)
end

return each(1, size, 1, 1, release, {})
