"""Quantizes weights into blocks of GGUF's types, in numpy: the gguf package's types, and also Q4_K and Q6_K.

llama.cpp searches for scales that make the error small. Here scales are computed from the extremes. Files
then have slightly larger errors and the same speed.
"""

from __future__ import annotations

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
OWN = (Type.Q4_K, Type.Q6_K)


def quantized(weight: Floats, kind: Type) -> NDArray[np.generic]:
    """Quantizes weight [..., k] f32; k must be whole blocks. Returns values for F32 and F16, otherwise bytes
    [..., bytes of a row]."""
    if kind not in OWN:
        return gguf.quants.quantize(weight, kind)
    blocks = np.ascontiguousarray(weight, np.float32).reshape(-1, 256)
    made = q4_k(blocks) if kind == Type.Q4_K else q6_k(blocks)
    return made.reshape(*weight.shape[:-1], -1)


def q4_k(blocks: Floats) -> Bytes:
    """Q4_K: 8 groups of 32 codes. Each group has a scale and a minimum of 6 bits. The scales have a common
    f16 scale, and so have the minimums."""
    groups = blocks.reshape(-1, 8, 32)
    least = np.maximum(-groups.min(2), 0)
    scale = (np.maximum(groups.max(2), 0) + least) / 15
    d, sc = _steps(scale, 63)
    dmin, m = _steps(least, 63)
    step = (d * sc)[..., None]
    codes = np.divide(groups + (dmin * m)[..., None], step, out=np.zeros_like(groups), where=step != 0)
    q = np.clip(np.rint(codes), 0, 15).astype(np.uint8).reshape(-1, 4, 2, 32)
    sc, m = sc.astype(np.uint8), m.astype(np.uint8)
    low, high = (sc[:, :4], m[:, :4]), (sc[:, 4:], m[:, 4:])
    scales = [x | (y >> 4) << 6 for x, y in zip(low, high, strict=True)]
    scales.append((high[0] & 15) | (high[1] & 15) << 4)
    return np.concatenate(
        [_half(d), _half(dmin), *scales, (q[:, :, 0] | q[:, :, 1] << 4).reshape(-1, 128)], axis=1
    )


def q6_k(blocks: Floats) -> Bytes:
    """Q6_K: 16 groups of 16 codes. Each group has a signed scale of 8 bits. The scales have a common f16
    scale."""
    groups = blocks.reshape(-1, 16, 16)
    at = np.abs(groups).argmax(2)[..., None]
    scale = np.take_along_axis(groups, at, 2)[..., 0] / -32
    largest = np.abs(scale).max(1, keepdims=True) / 127
    d = largest.astype(np.float16).astype(np.float32)
    sc = np.rint(np.divide(scale, d, out=np.zeros_like(scale), where=d != 0)).clip(-128, 127)
    step = (d * sc)[..., None]
    codes = np.divide(groups, step, out=np.zeros_like(groups), where=step != 0)
    q = (np.clip(np.rint(codes), -32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low = q & 15
    ql = np.stack((low[:, :, 0] | low[:, :, 2] << 4, low[:, :, 1] | low[:, :, 3] << 4), 2).reshape(-1, 128)
    high = q >> 4
    qh = high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6
    return np.concatenate([ql, qh.reshape(-1, 64), sc.astype(np.int8).view(np.uint8), _half(d)], axis=1)


def _steps(values: Floats, most: int) -> tuple[Floats, Floats]:
    """Returns (an f16 step for each row, the values as whole numbers of steps)."""
    d = (values.max(1, keepdims=True) / most).astype(np.float16).astype(np.float32)
    steps = np.divide(values, d, out=np.zeros_like(values), where=d != 0)
    return d, np.rint(steps).clip(0, most)


def _half(d: Floats) -> Bytes:
    return d.astype(np.float16).view(np.uint8)
