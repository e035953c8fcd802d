"""A torch decoder that runs whole serving steps and says how long each took.

  batch.py      what one step contains, as numpy arrays (rows, tokens, block tables)
  weights.py    random weights of an Architecture: timing needs shapes, not values
  kv_cache.py   the paged KV pool, really allocated, and the blocks a step reads and writes
  attention.py  attention of each row over its pages     decoder.py  one forward over all tokens of a step
  interface.py  what an experiment needs of an engine    runner.py   the engine in this process
  clock.py      seconds on a CPU thread or a GPU stream
  process.py    the engine behind a socket, in a process of its own   client.py  starts it and talks to it
  device_lock.py  one job per device     memory.py, cpu.py, devices.py  what is there to measure on
Only attention, clock, decoder, devices, kv_cache, process, runner and weights import torch; a web process may
import the rest. No Django here.
"""
