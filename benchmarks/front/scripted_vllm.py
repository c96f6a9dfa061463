"""Runs vLLM's server with an engine without a model: in each step every request gets tokens of a script.

    VENV/bin/python benchmarks/front/scripted_vllm.py SETTINGS MODEL --port 8001 ...   # options of vllm serve

It is scripted.py for vLLM. The engine's process, loop and messages are vLLM's; scheduler and executor are
scripted, through `--scheduler-cls` and `--distributed-executor-backend`. SETTINGS: JSON of `Settings`. It
runs in vLLM's virtual environment (peers/install.sh), without nextn.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

from scripted_steps import NAP_SECONDS, ScriptedSteps
from vllm.v1.core.sched.interface import PauseState, SchedulerInterface
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.executor.abstract import Executor
from vllm.v1.request import Request

SETTINGS = "NEXTN_SCRIPT"  # the environment variable from which the engine's process reads its settings
ANSWERS: dict[str, list[Any]] = {  # answers of a worker without a model
    "get_kv_cache_spec": [{}],
    "get_supported_kv_cache_layouts": [["NHD"]],
    "get_supported_tasks": [("generate",)],
}


class Settings(NamedTuple):
    """The settings of scripted.py, and the script as token ids."""

    brake: str
    streams: int
    lead: int
    step_seconds: float
    per_step: int
    script: list[int]


class ScriptedExecutor(Executor):
    """An executor without a model. The result of a step has no contents."""

    def _init_executor(self) -> None: ...

    def collective_rpc(self, method: object, *args: object, **options: object) -> list[Any]:
        return ANSWERS.get(str(method), [])

    def execute_model(self, scheduler_output: SchedulerOutput, non_block: bool = False) -> Any:
        result: Future[object] = Future()
        result.set_result(scheduler_output)
        return result if non_block else scheduler_output

    def check_health(self) -> None: ...


class ScriptedScheduler(SchedulerInterface):
    """A scheduler that puts every request into every step."""

    def __init__(self, *args: object, **options: object) -> None:
        own = self.settings = Settings(*json.loads(os.environ[SETTINGS]))
        self.steps = ScriptedSteps(Path(own.brake), own.lead, own.step_seconds, own.per_step)
        self._running: dict[str, tuple[Request, int]] = {}  # (request, number of its tokens)
        self._begun = False
        self.connector = self.ec_connector = None

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        plan, running = SchedulerOutput.make_empty(), len(self._running)
        self._begun |= running >= self.settings.streams
        if not self._begun:
            time.sleep(NAP_SECONDS)
        elif self.steps.wait(running):
            plan.total_num_scheduled_tokens = self.steps.per_step * running
        return plan

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: object
    ) -> dict[int, EngineCoreOutputs]:
        if not scheduler_output.total_num_scheduled_tokens:
            return {}
        found: dict[int, EngineCoreOutputs] = {}
        for rid, (request, had) in list(self._running.items()):
            tokens = self.steps.tokens(self.settings.script, had, request.max_tokens)
            reason = FinishReason.LENGTH if had + len(tokens) == request.max_tokens else None
            if reason is None:
                self._running[rid] = request, had + len(tokens)
            else:
                del self._running[rid]
            outputs = found.setdefault(request.client_index, EngineCoreOutputs(outputs=[]))
            outputs.outputs.append(EngineCoreOutput(rid, tokens, finish_reason=reason))
        return found

    def add_request(self, request: Request) -> None:
        self._running[request.request_id] = request, 0

    def finish_requests(self, request_ids: str | Iterable[str] | None, finished_status: object) -> list[Any]:
        some = [request_ids] if isinstance(request_ids, str) else list(request_ids or self._running)
        for rid in some:
            self.steps.made -= self._running.pop(rid, (None, 0))[1]
        return []

    def get_num_unfinished_requests(self) -> int:
        return len(self._running)

    def has_finished_requests(self) -> bool:
        return False

    def get_request_counts(self) -> tuple[int, int]:
        return len(self._running), 0

    def get_grammar_bitmask(self, scheduler_output: SchedulerOutput) -> None: ...

    def update_draft_token_ids(self, draft_token_ids: object) -> None: ...

    def update_draft_token_ids_in_output(self, *args: object) -> None: ...

    @property
    def pause_state(self) -> PauseState:
        return PauseState.UNPAUSED

    def set_pause_state(self, pause_state: PauseState) -> None: ...

    def reset_prefix_cache(self, *args: object, **options: object) -> bool:
        return True

    def reset_encoder_cache(self) -> None: ...

    def make_stats(self) -> None: ...

    def shutdown(self) -> None: ...


def main() -> None:
    os.environ[SETTINGS] = sys.argv[1]
    here = os.path.dirname(os.path.abspath(__file__))
    os.environ["PYTHONPATH"] = here  # for the engine's process
    own = ["--scheduler-cls", "scripted_vllm.ScriptedScheduler", "--no-async-scheduling"]
    own += ["--distributed-executor-backend", "scripted_vllm.ScriptedExecutor"]
    own += ["--disable-log-stats", "--uvicorn-log-level", "warning", "--model"]
    sys.argv = ["api_server", *own, *sys.argv[2:]]
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")


if __name__ == "__main__":
    main()
