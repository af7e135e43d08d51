--@gate
-- Answers the run id, whether the gate is open to it, and the largest counter.
local highest = 0
for i = 2, #KEYS do highest = math.max(highest, (counter(KEYS[i]))) end
return {run_id, call('GET', KEYS[1]) == run_id and 1 or 0, highest}
