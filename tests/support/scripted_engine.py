"""An engine without a model, for tests of the server: it answers with the tokens of a fixed text.

Its settings are environment variables, because the engine has its own process:

    SCRIPT_TEXT      the text of every answer, repeated (default: a few lines)
    SCRIPT_STEP      seconds a step takes (default 0)
    SCRIPT_RUN       tokens committed per step (default 3); all but the last count as drafted. With
                     --speculative-num-steps 0 it is 1
    SCRIPT_AUTO      the gain that automatic depth predicts; below 1 it reports that it does not draft
                     (default: the depth is fixed)
    SCRIPT_TOKENIZER folder of the tokenizer
    SCRIPT_LOAD      seconds the engine takes to be built (default 0)
    SCRIPT_FAIL      "load": the engine cannot be built; "load-if <path>": the same while the file exists.
                     With any value a step raises for a prompt of 13 tokens

As a program it is `nextn serve` with this engine: python scripted_engine.py --port 0 …
"""

from __future__ import annotations

import os
import sys
import time

from nextn.config import EngineConfig
from nextn.drafting_state import DraftingState
from nextn.request import Output, Request, SpeculativeParams, StepDraft
from nextn.speculation import Speculation
from nextn.stats import EngineStats
from nextn.tokenizer.tokenizer import Tokenizer

TEXT = "def add(a, b):\n    return a + b\n\n\nclass Ключ:\n    pass  # €uro\n\n"


class ScriptedEngine:
    """Each step gives every running request the next SCRIPT_RUN tokens of the text, or fewer if it asks for
    fewer drafts. A request begins at position seed + stream of the text. At temperature 0 it begins at 0."""

    def __init__(self, config: EngineConfig) -> None:
        self.fail = os.environ.get("SCRIPT_FAIL", "")
        time.sleep(float(os.environ.get("SCRIPT_LOAD", "0")))
        how, _, path = self.fail.partition(" ")
        if how == "load" or (how == "load-if" and os.path.exists(path)):
            raise ValueError("the checkpoint is no good")
        self.config = config
        tokenizer = Tokenizer.from_folder(os.environ["SCRIPT_TOKENIZER"])
        self.text = tokenizer.encode(os.environ.get("SCRIPT_TEXT", TEXT), add_special_tokens=False)
        self.seconds = float(os.environ.get("SCRIPT_STEP", "0"))
        self.run = 1 if config.speculative_num_steps == 0 else int(os.environ.get("SCRIPT_RUN", "3"))
        self.vocab_size = tokenizer.vocab_size
        self.eos_token_ids = frozenset({1})
        self.context_length = config.context_length or 1024
        gain = os.environ.get("SCRIPT_AUTO")
        self.gain = None if gain is None else float(gain)
        self.speculation = Speculation("NEXTN", self.run - 1, auto=gain is not None)
        self.speculative_defaults = SpeculativeParams()
        self.startup = {"weight_bytes": 2**20, "load_seconds": 0.5, "kv_tokens": 4096}
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.counters = EngineStats(total_tokens=4096)

    def add(self, request: Request) -> None:
        if request.tokens[0] == 7:
            raise ValueError("a prompt may not begin with token 7 here")
        speculative = request.params.speculative.or_else(self.speculative_defaults)
        request.params = request.params.replace(speculative=speculative)
        request.num_prompt, request.arrived = len(request.tokens), time.perf_counter()
        request.limit = min(request.num_prompt + request.params.max_tokens, self.context_length)
        self.waiting.append(request)

    def set_speculative_defaults(self, defaults: SpeculativeParams) -> None:
        if defaults.verify == "block":
            raise ValueError("speculative.verify is 'block'; not here")
        self.speculative_defaults = defaults

    stalled = False

    def check(self) -> None:
        pass

    def flush_cache(self) -> bool:
        return not self.has_work()

    def abort(self, rid: str) -> bool:
        before = len(self.running) + len(self.waiting)
        self.running = [r for r in self.running if r.rid != rid]
        self.waiting = [r for r in self.waiting if r.rid != rid]
        return len(self.running) + len(self.waiting) < before

    def step(self) -> list[Output]:
        time.sleep(self.seconds)
        while self.waiting and len(self.running) < self.config.max_running_requests:
            request = self.waiting.pop(0)
            request.first_cached = request.num_prompt // 2
            self.counters.prompt_tokens += request.num_prompt
            self.counters.cached_tokens += request.first_cached
            self.running.append(request)
        outputs = [self._advance(request) for request in self.running]
        self.running = [r for r, out in zip(self.running, outputs, strict=True) if out.finish_reason is None]
        self.counters.steps += 1
        self.counters.decode_steps += 1
        return outputs

    def _advance(self, request: Request) -> Output:
        if self.fail and request.num_prompt == 13:
            raise RuntimeError("a step went wrong")
        params = request.params
        begin = (params.seed + params.stream if params.temperature else 0) + request.num_output
        steps = params.speculative.num_steps
        drafts = self.run - 1 if steps is None else min(steps, self.run - 1)
        took = min(1 + drafts, request.limit - len(request.tokens))
        tokens = [self.text[(begin + i) % len(self.text)] for i in range(took)]
        request.tokens += tokens
        for spec in (request.spec, self.counters.spec) if took else ():
            spec.add(drafts, took - 1, took)
        self.counters.generated_tokens += took
        done = len(request.tokens) >= request.limit
        out = Output(request.rid, tokens, [*range(1, took), 0][:took], "length" if done else None)
        if params.draft_steps:
            # One more draft than are accepted. It is counted nowhere else.
            made = [*tokens[: took - 1], self.text[0]] if drafts else []
            seconds = time.perf_counter() - request.arrived
            out.step = StepDraft(made, None, [*range(took - 1)] if drafts else [], seconds)
        return out

    def remember(self) -> None:
        pass

    wakes = None

    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def must_step(self) -> bool:
        return self.has_work()

    def stats(self) -> EngineStats:
        counters = self.counters
        counters.running, counters.waiting = len(self.running), len(self.waiting)
        if self.gain is not None:
            does = self.gain >= 1
            counters.auto = DraftingState(does, counters.running, self.gain, "")
        counters.used_tokens = sum(len(r.tokens) for r in self.running)
        return counters


def make(config: EngineConfig) -> ScriptedEngine:
    return ScriptedEngine(config)


def main() -> int:
    from nextn import cli
    from nextn.server import launch

    serve = launch.serve
    launch.serve = lambda config: serve(config, make)  # type: ignore[assignment,arg-type]
    return cli.main(["serve", "--model-path", os.environ["SCRIPT_TOKENIZER"], *sys.argv[1:]])


if __name__ == "__main__":
    # The engine process imports `make` by its module's name, which must not be __main__.
    import scripted_engine

    sys.exit(scripted_engine.main())
