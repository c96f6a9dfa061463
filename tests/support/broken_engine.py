"""`nextn serve` with the embedded model and broken logits: python broken_engine.py [options]

For requests whose prompt begins with token BROKEN, the target's logits are NaN from the third token on.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nextn.config import EngineConfig
from nextn.engine.engine import Engine

BROKEN, WHOLE = 7, 2


def break_requests(engine: Engine) -> Engine:
    """Sets the hidden states of these requests to NaN: logits and drafts are computed from them."""
    executor: Any = engine._executor
    model = executor.model
    run, forward = executor.run, model.forward
    spoilt: list[int] = []

    def look(plan: Any) -> Any:
        spoilt.clear()
        at = 0
        for span in plan.spans:
            state, n = executor.states[span.rid], span.known + len(span.draft)
            if state.history[0] == BROKEN and len(state.history) - state.num_prompt >= WHOLE:
                spoilt.extend(range(at, at + n))
            at += n
        return run(plan)

    def spoil(*args: Any) -> Tensor:
        hidden: Tensor = forward(*args)
        hidden[spoilt] = torch.nan
        return hidden

    executor.run, model.forward, executor.plain = look, spoil, None
    return engine


def make(config: EngineConfig) -> Engine:
    return break_requests(Engine(config))


def main(argv: Sequence[str]) -> int:
    from nextn import cli
    from nextn.server import launch

    serve = launch.serve
    launch.serve = lambda config: serve(config, make)  # type: ignore[assignment]
    return cli.main(["serve", *argv])


if __name__ == "__main__":
    # The engine process imports `make` by its module's name, which must not be __main__.
    import broken_engine

    sys.exit(broken_engine.main(sys.argv[1:]))
