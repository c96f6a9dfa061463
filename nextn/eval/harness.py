"""Runs lm-eval against one server, with the shipped tasks or any lm-eval task whose data is available.

lm-eval is an optional and heavy dependency, so only a running evaluation imports this module.
"""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from lm_eval import evaluate
from lm_eval.models.openai_completions import LocalCompletionsAPI
from lm_eval.tasks import TaskManager

from nextn.bench.errors import BenchError
from nextn.eval.results import Run
from nextn.eval.tasks import FOLDER, PACKAGED, SHIPPED
from nextn.tokenizer import Tokenizer

SEED = 1234  # for the choice of few-shot examples


class ServedModel(LocalCompletionsAPI):  # type: ignore[misc]
    """lm-eval's model `local-completions` with the tokenizer of the served model. It sends prompts as token
    ids. `seconds`: time spent on requests so far."""

    tokenizer: Tokenizer

    def __init__(
        self,
        url: str,
        model: str,
        tokenizer: Tokenizer,
        max_length: int,
        concurrency: int,
        chats: bool = False,
    ) -> None:
        """chats: the chat template renders the prompts and writes the special tokens."""
        super().__init__(
            base_url=f"{url}/v1/completions",
            model=model,
            tokenizer_backend=None,
            num_concurrent=concurrency,
            max_length=max_length,
            timeout=3600,
        )
        self.tokenizer, self.tokenized_requests = tokenizer, True
        self.chats = chats
        self.seconds = 0.0

    @property
    def eot_token_id(self) -> int | None:
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self) -> int | None:
        return self.tokenizer.bos_token_id or self.tokenizer.eos_token_id

    @property
    def eos_string(self) -> str | None:
        return self.tokenizer.eos_token

    def tok_encode(
        self, string: str | Sequence[str], left_truncate_len: int | None = None, **_: Any
    ) -> list[int] | list[list[int]]:
        texts = [string] if isinstance(string, str) else list(string)
        encoded = self.tokenizer.encode_batch(texts, add_special_tokens=not self.chats)
        ids = [tokens[-(left_truncate_len or 0) :] for tokens in encoded]
        return ids[0] if isinstance(string, str) else ids

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        return self.tokenizer.render_chat(chat_history, add_generation_prompt)

    def _loglikelihood_tokens(self, requests: Any, **options: Any) -> Any:
        with self._timed():
            return super()._loglikelihood_tokens(requests, **options)

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> Any:
        with self._timed():
            return super().generate_until(requests, disable_tqdm)

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - begin


@dataclass(frozen=True)
class Harness:
    """The settings of an evaluation that do not depend on the server. `limit`: documents of each task; None:
    all."""

    manager: TaskManager
    limit: int | None
    num_fewshot: int | None
    concurrency: int
    runs_programs: bool = False  # whether programs that a model wrote may run
    chats: bool = False  # whether prompts are rendered as chats

    def run(self, task: str, url: str, model: str, tokenizer: Tokenizer, max_length: int) -> Run:
        """Runs one task on one server. Raises BenchError if a request fails in all its tries."""
        served = ServedModel(url, model, tokenizer, max_length, self.concurrency, self.chats)
        random.seed(SEED)
        np.random.seed(SEED)
        loaded = self.manager.load([task])
        for one in loaded["tasks"].values():
            own = one.get_config("num_fewshot")
            # A task that sets 0 needs it: examples would contain its answers.
            if own is None or (own != 0 and self.num_fewshot is not None):
                one.set_config(key="num_fewshot", value=self.num_fewshot or 0)
            one.set_fewshot_seed(seed=SEED)
        try:
            found = evaluate(
                lm=served,
                task_dict=loaded,
                limit=self.limit,
                bootstrap_iters=0,
                apply_chat_template=self.chats,
                confirm_run_unsafe_code=self.runs_programs,
            )
        # errors of aiohttp and requests, and any error of lm-eval on an unexpected answer
        except Exception as e:
            raise BenchError(f"the task {task} on {url} failed: {type(e).__name__}: {e}") from e
        return Run.of(found, served.seconds)


def load_tasks(names: Sequence[str], include_path: Path | None) -> TaskManager:
    """Finds the tasks and loads their data once, before any server starts.

    Raises ValueError for an unknown task, and for one whose data cannot be loaded.
    """
    paths = [str(FOLDER), *([str(include_path)] if include_path else [])]
    # Reading all of lm-eval's own tasks takes ten seconds, so it is avoided if possible.
    manager = TaskManager(include_path=paths, include_defaults=not set(names) <= {*SHIPPED, *PACKAGED})
    for name in names:
        if name not in manager.all_tasks:
            raise ValueError(f"--tasks {name}: lm-eval has no such task; see `lm-eval ls tasks`")
        try:
            manager.load([name])
        except ModuleNotFoundError as e:
            raise ValueError(f"--tasks {name}: {e}") from e
        # The kind of error depends on where the data set is stored.
        except Exception as e:
            raise ValueError(
                f"--tasks {name}: its data set cannot be loaded ({type(e).__name__}: {e}); it comes from the "
                f"Hugging Face Hub, or from its cache here (HF_HOME). {' and '.join(SHIPPED)} need neither"
            ) from e
    return manager


@contextlib.contextmanager
def quiet(log: Path, bars: bool) -> Iterator[None]:
    """Sends the output of lm-eval and its libraries to a file. With `bars`, their progress bars still
    appear."""
    handler = logging.FileHandler(log)
    loggers = [logging.getLogger(name) for name in ("lm_eval", "datasets", "huggingface_hub", "httpx")]
    before = [logger.propagate for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.propagate = False
    try:
        with contextlib.ExitStack() as stack:
            if not bars:
                stack.enter_context(contextlib.redirect_stderr(stack.enter_context(log.open("a"))))
            yield
    finally:
        for logger, propagate in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.propagate = propagate
        handler.close()
