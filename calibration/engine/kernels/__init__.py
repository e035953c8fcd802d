"""Triton kernels: what a GPU runs beside matrix products.

  rows.py        RMSNorm (with the residual's sum), gated activations
  store.py       heads normed, turned and stored in the pool; the same for a latent
  softmax.py     one tile of keys entered into running sums: shared by the two kernels of attention
  decode.py      attention of one query a row, the row's keys split among programs, then combined
  chunks.py      attention of many queries a row, in tiles, over the same pages
  experts.py     one product for all experts of a layer
  operations.py  these as operations.Operations     plan.py  a step's index arrays for them
Tables are int32 [rows, blocks], the pool is kv_cache's. Loads are masked to what a row owns: a page's unused part is
never read. Checked on a CPU by Triton's interpreter against float64, and compiled for sm_80 and sm_90 without a
device; WHETHER THEY ARE RIGHT OR FAST ON A GPU HAS NOT BEEN SEEN: scripts/gpu_check.sh quick says.
"""
