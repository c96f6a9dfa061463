"""A decode step of chains as one function of tensors on the device.

It contains the target's pass over roots and drafts, the choice of every row, and verification. Then come
draft extend, the next drafts with their cutoff, and the relay for the next step. A `StepShape` fixes all
shapes, and the host reads nothing in between. So on CUDA the whole step is one graph
(`nextn.speculative.device.graphs`). In the tests, the same code runs on the CPU.

It computes the same bits as `nextn.engine.runner` for such spans, because a row has the same bits in any
batch.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from nextn.kvcache.pool import KVPool
from nextn.models.torch_model import TorchModel
from nextn.speculative.device.choose import chosen, guessed
from nextn.speculative.device.columns import INPUTS, RESULT_WIDTH
from nextn.speculative.device.cutoff import edges
from nextn.speculative.device.numbers import Extend, StepMemory, StepNumbers
from nextn.speculative.device.plain import PlainNumbers
from nextn.speculative.device.relay import Relay
from nextn.speculative.device.sent import Sent
from nextn.speculative.device.shape import StepShape


class DeviceStep:
    """inputs, cutoff, results: see `nextn.speculative.device.numbers.StepMemory`. sent: inputs, cutoff, and
    the changes of page tables."""

    def __init__(self, model: TorchModel, pool: KVPool, relay: Relay, requests: int) -> None:
        """requests: maximum number in a step."""
        self.model, self.pool, self.relay = model, pool, relay
        device = model.device
        self.sent = Sent(requests, INPUTS, device)
        self.inputs, self.cutoff = self.sent.inputs, self.sent.cutoff
        self.results = torch.zeros(requests, RESULT_WIDTH, dtype=torch.int32, device=device)
        self._memory = StepMemory(
            relay, self.inputs, self.results, self.cutoff, edges(device), pool.page_size, model.row_align
        )

    def run(self, shape: StepShape) -> None:
        """Runs a step of the first `shape.requests` inputs. Changes their rows of the relay, writes
        results."""
        sent, requests = self.sent, shape.requests
        self.relay.write_pages(sent.places[:requests], sent.pages[:requests])
        numbers = self._numbers(shape)
        hidden = TorchModel.forward(self.model, numbers.begin(), self.pool)
        extend = numbers.verify(chosen(self.model, hidden, numbers.draws, shape.choosing))
        if extend is not None:
            self._draft(extend, hidden, numbers, shape)
        numbers.end()

    def _numbers(self, shape: StepShape) -> StepNumbers:
        name = self.model.ops.name
        if name == "triton":
            from nextn.speculative.device.triton.numbers import TritonNumbers

            return TritonNumbers(self._memory, shape)
        return PlainNumbers(self._memory, shape, torch.int64 if name == "reference" else torch.int32)

    def _draft(self, extend: Extend, hidden: Tensor, numbers: StepNumbers, shape: StepShape) -> None:
        model, drafting = self.model, shape.drafting
        state = model.draft_from(extend.batch, hidden, extend.source, self.pool)
        if drafting.num_steps:
            state = state.index_select(0, extend.last)
        for step in range(drafting.num_steps):
            guess, confidence = guessed(
                model, state, shape.requests, partial(numbers.guess_draws, step), shape.choosing,
                drafting.cut,
            )  # fmt: skip
            batch = numbers.guessed(step, guess, confidence)
            if batch is not None:
                state = model.draft_from(batch, state, None, self.pool)
