"""The op backend for CUDA, in Triton kernels.

| file | kernels |
|---|---|
| `product.py` | the inner loop of every matrix product, and its tiles for each shape |
| `embed.py` | the beginning of a pass: embeddings, rotations; a NextN module's two norms |
| `linear.py` | x W^T, for one matrix or one for each head; queries for the cache; SwiGLU's first half |
| `rows.py` | norms, and MLA's entries for the cache, row by row |
| `heads.py` | queries and cache entries of grouped-query attention |
| `attention.py` | attention over the paged cache: absorbed MLA and grouped-query attention |
| `route.py`, `experts.py` | the router; which rows an expert gets, its products, their sum |
| `fp8_rows.py` | rows rounded to e4m3 for the experts |
| `noise.py` | the random numbers of a choice |
| `best.py` | the best token of a row, and its confidence: of logits, or of the head's product |
| `early.py` | launches kernels while the one before runs |
| `ops.py` | all of them as `nextn.ops.base.Ops` |

A row has the same bits in any batch: every sum has a fixed order, which does not depend on the tiles, and the
rows of a tile are never combined. The host never reads a number from the device, so a whole step can be
captured as a CUDA graph (`nextn.speculative.device.graphs`).

`TRITON_INTERPRET=1` runs the kernels on a CPU, slowly, for the tests.
"""
