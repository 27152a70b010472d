-- Opens the store: marks an empty one with the schema and a fresh id; says which schema and id it has.
-- uses: fc:schema fc:store
-- args: schema store_id
-- returns: OK schema store_id
local schema, store_id = ARGV[1], ARGV[2]
redis.call('SET', 'fc:schema', schema, 'NX')
redis.call('SET', 'fc:store', store_id, 'NX')
return { 'OK', redis.call('GET', 'fc:schema'), redis.call('GET', 'fc:store') }
