"""A torch decoder that runs whole serving steps and says how long each took.

  batch.py      what one step contains, as numpy arrays (rows, tokens, block tables)
  weights.py    random weights of an Architecture: timing needs shapes, not values   model_weights.py  their layout
  products.py   matrix products with them, also with weights in 8 bits     shards.py  a rank's share of a model
  kv_cache.py   the paged KV pool, really allocated, and the blocks a step reads and writes
  decoder.py    one forward over all tokens of a step      operations.py  what it asks of its device
  torch_operations.py  the answer in plain torch: attention.py (rows over their pages), latent.py (MLA),
                mixture.py (experts)
  kernels/      the same as Triton kernels for a GPU       graphs.py  steps captured and replayed, padded to sizes
  stepping.py   which of these a device runs a step by
  ceilings.py   what the device can do at most     breakdown.py  where a step's time goes, profiled
  check_device.py  is all this right on a device? (scripts/gpu_check.sh)
  interface.py  what an experiment needs of an engine    runner.py   the engine in this process
  clock.py      seconds on a CPU thread or a GPU stream
  process.py    the engine behind a socket, in a process of its own   rank_process.py  that process from outside
  parent.py     what ends a process whose parent has been killed
  client.py     starts one, or one for each rank, and talks to them    ranks.py, sharding.py  tensor parallelism
  device_lock.py  one job per device     memory.py, cpu.py, devices.py  what is there to measure on
A web process may import batch, client, cpu, device_lock, interface, memory, rank_process, sharding and wire; the
rest imports torch. No Django here.
"""
