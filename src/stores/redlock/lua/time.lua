-- time.lua   the node's clock
-- → { micros }
return { whole(micros) }
