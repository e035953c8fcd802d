"""A torch decoder that runs whole serving steps and says how long each took.

  batch.py      what one step contains, as numpy arrays (rows, tokens, block tables)
  weights.py    random weights of an Architecture: timing needs shapes, not values
  kv_cache.py   the paged KV pool, really allocated, and the blocks a step reads and writes
  attention.py  attention of each row over its pages     decoder.py  one forward over all tokens of a step
  clock.py      seconds on a CPU thread or a GPU stream   runner.py   shapes in, seconds out
  process.py    the same behind a socket, in a process of its own     client.py  starts it and talks to it
  device_lock.py  one job per device
Only batch, wire, client and device_lock may be imported where torch is not installed. No Django here.
"""
