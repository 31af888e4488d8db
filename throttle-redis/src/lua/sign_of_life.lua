-- What a decision needs of its server, on a key that never exists: nothing is written.
redis.call('TIME')
redis.call('GET', KEYS[1])
redis.call('SET', KEYS[1], '', 'PX', 1, 'XX')
return 'A'
