-- Fails when the server was promoted since the client learned its epoch: it has another replication id then.
local function promoted(id)
  if id and not string.find(call('INFO', 'replication'), 'master_replid:' .. id, 1, true) then
    error({err = 'ONELOCKEPOCH the server was promoted, or may not say so'})
  end
end

-- Fails where this start of the server has no vote; `gate` is nil where the client asks for none. Before any write.
local function admitted(gate)
  if gate and string.match(call('INFO', 'server'), 'run_id:(%x+)') ~= call('GET', gate) then
    error({err = 'ONELOCKGATE the server has restarted, and may have forgotten what it gave: no vote until its gate is opened'})
  end
end

