"""ggml's types of tensors: the number of values and bytes of a block (ggml.h, ggml-common.h)."""

from __future__ import annotations

from typing import NamedTuple


class Type(NamedTuple):
    name: str
    values: int  # per block
    bytes: int


TYPES = {
    0: Type("F32", 1, 4), 1: Type("F16", 1, 2), 2: Type("Q4_0", 32, 18), 3: Type("Q4_1", 32, 20),
    6: Type("Q5_0", 32, 22), 7: Type("Q5_1", 32, 24), 8: Type("Q8_0", 32, 34), 9: Type("Q8_1", 32, 40),
    10: Type("Q2_K", 256, 84), 11: Type("Q3_K", 256, 110), 12: Type("Q4_K", 256, 144),
    13: Type("Q5_K", 256, 176), 14: Type("Q6_K", 256, 210), 15: Type("Q8_K", 256, 292),
    16: Type("IQ2_XXS", 256, 66), 17: Type("IQ2_XS", 256, 74), 18: Type("IQ3_XXS", 256, 98),
    19: Type("IQ1_S", 256, 50), 20: Type("IQ4_NL", 32, 18), 21: Type("IQ3_S", 256, 110),
    22: Type("IQ2_S", 256, 82), 23: Type("IQ4_XS", 256, 136), 24: Type("I8", 1, 1), 25: Type("I16", 1, 2),
    26: Type("I32", 1, 4), 27: Type("I64", 1, 8), 28: Type("F64", 1, 8), 29: Type("IQ1_M", 256, 56),
    30: Type("BF16", 1, 2), 34: Type("TQ1_0", 256, 54), 35: Type("TQ2_0", 256, 66),
    39: Type("MXFP4", 32, 17), 40: Type("NVFP4", 64, 36), 41: Type("Q1_0", 128, 18),
}  # fmt: skip

# The types that nextn reads: plain values, and blocks that it computes from or widens.
PLAIN = ("F32", "F16", "BF16")
BLOCKS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
READABLE = (*PLAIN, *BLOCKS)
