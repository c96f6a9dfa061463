"""`nextn.speculative.device.numbers.StepNumbers` in Triton kernels, for CUDA: three for a step, and one for
each guess.

| file | kernel |
|---|---|
| `begin.py` | the target's batch, from inputs and the relay |
| `verify.py` | what is committed, and the draft layer's pass over it |
| `guessed.py` | after a guess: the cutoff, and the next pass |
| `end.py` | the relay's rows |
| `layout.py` | shared by `begin` and `verify`: which span a row belongs to |
| `columns.py` | columns, as constants of kernels |
| `numbers.py` | all of them as `StepNumbers` |

Numbers that follow from the shape of a step are plain arguments. No kernel is compiled for a single one of
them, because a start captures graphs of dozens of shapes. All other numbers are on the device. Everything is
int32."""
