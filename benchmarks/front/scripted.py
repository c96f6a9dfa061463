"""Runs `nextn serve` with an engine without a model: in each step every request gets tokens of a script.

python benchmarks/front/scripted.py BRAKE STREAMS LEAD STEP_MS TOKENS --port 0 ...   # options of nextn serve

The engine's process, loop and messages are nextn's; only the steps are scripted. The first step waits for
STREAMS requests. The engine is ahead of the clients by at most LEAD steps: the clients count the tokens that
they have received in the file BRAKE. STEP_MS: minimum time of a step. TOKENS: tokens of each request in each
step.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

from scripted_steps import ScriptedSteps

from nextn.config import model_folder
from nextn.request import Output, Request
from nextn.server_config import ServerConfig
from nextn.stats import EngineStats
from nextn.tokenizer.tokenizer import Tokenizer

CHARS = 4  # characters of each token of the script, so that clients can count the tokens of an event
SCRIPT = 64  # number of different tokens
CONTEXT = 1 << 20


def script(tokenizer: Tokenizer) -> list[int]:
    """The script: up to SCRIPT tokens of CHARS plain letters or spaces each."""
    spelled = tokenizer.token_bytes()
    plain = (i for i in range(tokenizer.vocab_size) if len(spelled[i]) == CHARS and words(spelled[i]))
    return [token for token, _ in zip(plain, range(SCRIPT), strict=False)]


def words(text: bytes) -> bool:
    return text.replace(b" ", b"a").isalpha() and text.isascii()


class ScriptedEngine:
    """A scripted engine, with the part of `Engine` that `nextn.server.process.engine_process.loop` uses."""

    context_length, eos_token_ids, wakes, stalled = CONTEXT, frozenset[int](), None, False

    def __init__(
        self, brake: Path, streams: int, lead: int, step_seconds: float, per_step: int, config: ServerConfig
    ) -> None:
        tokenizer = Tokenizer.from_folder(model_folder(config.model_path))
        self.script, self.vocab_size = script(tokenizer), tokenizer.vocab_size
        self.streams, self.steps = streams, ScriptedSteps(brake, lead, step_seconds, per_step)
        self.speculation = SimpleNamespace(auto=False, num_steps=per_step - 1)
        self.startup: dict[str, object] = {"engine": "scripted"}
        self._running: dict[str, Request] = {}
        self._stats = EngineStats()
        self._begun = False

    def add(self, request: Request) -> None:
        request.num_prompt = len(request.tokens)
        self._running[request.rid] = request

    def abort(self, rid: str) -> bool:
        request = self._running.pop(rid, None)
        self.steps.made -= request.num_output if request is not None else 0
        return request is not None

    def has_work(self) -> bool:
        self._begun |= len(self._running) >= self.streams
        return self._begun and bool(self._running)

    must_step = has_work

    def step(self) -> list[Output]:
        if not self.steps.wait(len(self._running)):
            return []
        self._stats.decode_steps += 1
        outputs = list(self._outputs())
        self._stats.running = len(self._running)
        return outputs

    def _outputs(self) -> Iterator[Output]:
        for request in list(self._running.values()):
            tokens = self.steps.tokens(self.script, request.num_output, request.params.max_tokens)
            request.tokens += tokens
            self._stats.generated_tokens += len(tokens)
            request.spec.add(self.steps.per_step - 1, len(tokens) - 1, len(tokens))
            reason = "length" if request.num_output == request.params.max_tokens else None
            if reason is not None:
                del self._running[request.rid]
            yield Output(request.rid, tokens, [*range(1, len(tokens)), 0], reason)

    def stats(self) -> EngineStats:
        return self._stats

    def check(self) -> None: ...

    def remember(self) -> None: ...

    def flush_cache(self) -> bool:
        return not self._running


def main() -> int:
    from nextn.cli.options import add_model, add_options, parse
    from nextn.cli.parser import Parser
    from nextn.server.launch import serve

    parser = argparse.ArgumentParser()
    parser.add_argument("brake", type=Path)
    parser.add_argument("streams", type=int)
    parser.add_argument("lead", type=int)
    parser.add_argument("step_ms", type=float)
    parser.add_argument("tokens", type=int)
    own = parser.parse_args(sys.argv[1:6])
    options = Parser()
    add_model(options)
    add_options(options, ServerConfig)
    config = parse(options.parse_args(sys.argv[6:]), ServerConfig)
    make = partial(ScriptedEngine, own.brake, own.streams, own.lead, own.step_ms / 1e3, own.tokens)
    return serve(config, make)  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.exit(main())
