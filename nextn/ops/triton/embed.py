"""The beginning of a pass in one launch: embeddings, and the rotations for the rows' positions. For a NextN
module, also the norms of embeddings and hidden states, side by side.

Shapes: T rows, C hidden, P rotated elements.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from nextn.ops.base import Tables
from nextn.ops.triton.early import early, let_next_start, wait
from nextn.ops.triton.rows import row_warps, store_norm


@triton.jit
def _take_turns(cos, sin, row_cos, row_sin, row, position, half, HALF: tl.constexpr):
    """Copies cos and sin for the position of one row."""
    i = tl.arange(0, HALF)
    tl.store(row_cos + row * half + i, tl.load(cos + position * half + i, mask=i < half), mask=i < half)
    tl.store(row_sin + row * half + i, tl.load(sin + position * half + i, mask=i < half), mask=i < half)


@triton.jit
def _embed(
    tokens, positions, embedding, cos, sin, x, row_cos, row_sin, width, half, C: tl.constexpr,
    HALF: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    wait(PDL)
    let_next_start(PDL)
    row, c = tl.program_id(0), tl.arange(0, C)
    token = tl.load(tokens + row).to(tl.int64)
    value = tl.load(embedding + token * width + c, mask=c < width)
    tl.store(x + row * width + c, value.to(tl.float32), mask=c < width)
    _take_turns(cos, sin, row_cos, row_sin, row, tl.load(positions + row), half, HALF)


@triton.jit
def _embed_beside(
    tokens, positions, embedding, cos, sin, hidden, rows, embedding_norm, hidden_norm, both, row_cos, row_sin,
    hidden_row, width, half, eps, SOME: tl.constexpr, FIRST: tl.constexpr, MASKS: tl.constexpr,
    C: tl.constexpr, HALF: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Programs (row, 0) process the embedding and the rotations, programs (row, 1) the hidden state. SOME:
    the hidden state of row t is hidden[rows[t]]."""
    wait(PDL)
    let_next_start(PDL)
    row, part, c = tl.program_id(0), tl.program_id(1), tl.arange(0, C)
    there = c < width
    to = both + 2 * row * width + (width if (part == 0) != FIRST else 0)
    if part == 0:
        position = tl.load(positions + row)
        _take_turns(cos, sin, row_cos, row_sin, row, position, half, HALF)
        some = there
        if MASKS:
            some = there & (position > 0)
        token = tl.load(tokens + row).to(tl.int64)
        v = tl.load(embedding + token * width + c, mask=some, other=0.0).to(tl.float32)
        store_norm(v, embedding_norm, to, width, eps, C)
    else:
        source = row.to(tl.int64)
        if SOME:
            source = tl.load(rows + row).to(tl.int64)
        v = tl.load(hidden + source * hidden_row + c, mask=there, other=0.0).to(tl.float32)
        store_norm(v, hidden_norm, to, width, eps, C)


def embed(tokens: Tensor, positions: Tensor, tables: Tables) -> tuple[Tensor, Tensor, Tensor]:
    """tokens, positions [T] -> [T, C] f32, cos and sin [T, P / 2] f32."""
    rows, width = len(tokens), _checked(tables)
    x = torch.empty(rows, width, dtype=torch.float32, device=tokens.device)
    row_cos, row_sin, half = _turns(rows, tables.cos)
    block = triton.next_power_of_2(width)
    _embed[(rows,)](
        tokens, positions, *tables, x, row_cos, row_sin, width, half, C=block,
        HALF=triton.next_power_of_2(half), num_warps=row_warps(block), **early(tokens.device),
    )  # fmt: skip
    return x, row_cos, row_sin


def embed_beside(
    tokens: Tensor, positions: Tensor, tables: Tables, hidden: Tensor, rows: Tensor | None,
    norms: tuple[Tensor, Tensor], eps: float, embedding_first: bool, masks_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """hidden [N, C]; rows [T], indices into it, or None: all; norms [C] -> [T, 2 * C], and cos and sin as
    from `embed`."""
    count, width = len(tokens), _checked(tables)
    assert hidden.stride(1) == 1
    assert len(hidden if rows is None else rows) == count
    both = torch.empty(count, 2 * width, dtype=norms[0].dtype, device=tokens.device)
    row_cos, row_sin, half = _turns(count, tables.cos)
    block = triton.next_power_of_2(width)
    _embed_beside[count, 2](
        tokens, positions, *tables, hidden, tokens if rows is None else rows, *norms, both, row_cos, row_sin,
        hidden.stride(0), width, half, eps, SOME=rows is not None, FIRST=embedding_first, MASKS=masks_first,
        C=block, HALF=triton.next_power_of_2(half), num_warps=row_warps(block), enable_fp_fusion=False,
        **early(tokens.device),
    )  # fmt: skip
    return both, row_cos, row_sin


def _checked(tables: Tables) -> int:
    """Checks strides and dtypes. Returns the embedding's width."""
    assert all(table.is_contiguous() for table in tables)
    assert tables.cos.dtype == tables.sin.dtype == torch.float32
    return tables.embedding.shape[1]


def _turns(rows: int, cos: Tensor) -> tuple[Tensor, Tensor, int]:
    half = cos.shape[1]
    row_cos, row_sin = (torch.empty(rows, half, dtype=torch.float32, device=cos.device) for _ in range(2))
    return row_cos, row_sin, half
