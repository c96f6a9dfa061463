"""The ops in Triton kernels, for CUDA.

| file | kernels |
|---|---|
| `product.py` | the inner loop of every matrix product; which tiles a shape is computed in |
| `embed.py` | what a pass begins with: embeddings, rotations; a NextN module's two norms |
| `linear.py` | x W^T, for one matrix or one for each head; queries for the cache; SwiGLU's first half |
| `rows.py` | what is done row by row: norms, and entries for the cache |
| `attention.py` | absorbed MLA over the paged cache |
| `route.py`, `experts.py` | the router; which rows an expert gets, its products, their sum |
| `noise.py` | the random numbers of a choice |
| `best.py` | the best token of a row, and its confidence: of logits, or of the head's product |
| `early.py` | how kernels are launched while the one before runs |
| `ops.py` | all of them as `nextn.ops.base.Ops` |

A row has the same bits in any batch: every sum runs in one order, whatever tiles it is cut into, and a tile's
rows never meet. Nothing asks the device for a number, so a whole step can be captured as a CUDA graph
(`nextn.speculative.device.graphs`).

`TRITON_INTERPRET=1` runs the kernels on a CPU, slowly, for the tests.
"""
