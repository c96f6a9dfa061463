"""`nextn.speculative.device.numbers.StepNumbers` in Triton kernels, for CUDA: three for a step, and one for
each guess.

| file | kernel |
|---|---|
| `begin.py` | the target's batch, from inputs and the relay |
| `verify.py` | what is committed, and the draft layer's pass over it |
| `guessed.py` | after a guess: the gate, and the next pass |
| `end.py` | the relay's rows |
| `layout.py` | what `begin` and `verify` share: which span a row is of |
| `columns.py` | columns, as constants of kernels |
| `numbers.py` | all of them as `StepNumbers` |

Numbers that follow from the shape of a step are plain arguments, and no kernel is compiled for one of them
alone: a start captures graphs of dozens of shapes. All others lie on the device. Everything is int32.
"""
