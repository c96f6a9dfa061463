"""Log-probabilities of tokens: log_softmax of the target's raw logits, for the rows that want them.

A row's results depend only on that row: log_softmax works row by row, and topk runs over rows that want the
same number of tokens. So MTP, batch and chunking do not change a bit of them.

Shapes: N rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nextn.request import TokenLogprob

ROWS = 64  # rows at a time, which limits the memory: 64 rows of 129,280 logits are 32 MiB


class LogprobRequest(NamedTuple):
    """A wanted log-probability: of `token`, from row `row` of the logits, and those of the `top` most likely
    tokens."""

    row: int
    token: int
    top: int


def token_logprobs(logits: Tensor, requests: Sequence[LogprobRequest]) -> list[TokenLogprob]:
    """logits [N, V] f32, raw -> one result for each of `requests`. Other rows cost nothing."""
    found: dict[int, TokenLogprob] = {}
    for top in {r.top for r in requests}:
        alike = [i for i, r in enumerate(requests) if r.top == top]
        for begin in range(0, len(alike), ROWS):
            some = alike[begin : begin + ROWS]
            found |= zip(some, _compute(logits, [requests[i] for i in some], top), strict=True)
    return [found[i] for i in range(len(requests))]


def _compute(logits: Tensor, requests: Sequence[LogprobRequest], top: int) -> list[TokenLogprob]:
    def column(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=logits.device)

    logprobs = logits.index_select(0, column([r.row for r in requests])).log_softmax(dim=-1)
    own = logprobs.gather(1, column([r.token for r in requests])[:, None])[:, 0].tolist()
    best, ids = (t.tolist() for t in logprobs.topk(min(top, logprobs.shape[1]), dim=-1))
    # Among equal tokens the smaller id is first, as in the choice of a token.
    return [
        TokenLogprob(p, sorted(zip(i, b, strict=True), key=lambda pair: (-pair[1], pair[0])))
        for p, i, b in zip(own, ids, best, strict=True)
    ]


def prompt_logprobs(
    logits: Callable[[list[int]], Tensor], requests: Sequence[LogprobRequest]
) -> Iterator[TokenLogprob]:
    """Yields one result for each of `requests`. logits(rows): the logits of these rows of the target's step,
    in order. It is called for at most ROWS rows at a time."""
    for begin in range(0, len(requests), ROWS):
        some = requests[begin : begin + ROWS]
        found = logits([r.row for r in some])
        yield from token_logprobs(found, [r._replace(row=i) for i, r in enumerate(some)])
