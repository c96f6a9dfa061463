"""The protocol between the benchmark and an engine: lines of JSON over a runner process's stdin and stdout.

    <- {"engine": "vLLM 0.32.0", "settings": {...}}                        once the model is loaded
    -> {"prompts": [[5, 6, 7], ...], "max_tokens": 64}
    <- {"seconds": 1.9, "tokens": [[8, 9, ...], ...], "spec": {...}}       or {"error": "..."}

A runner completes all prompts in one batch, greedily, without ending a text early and without a prefix cache.
This file uses only the standard library, because runners import it in environments without nextn.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Spec:
    """Speculation in one call.

    proposed[j], accepted[j]: drafts of depth j + 1 that were verified, and those that were accepted. Only
    their ratio can be compared: at the end of a text nextn proposes as many drafts as there is room for, but
    vLLM proposes drafts beyond the end and counts them as accepted. An engine that does not count by depth
    reports the sum as depth 1 and sets by_depth to False.
    """

    proposed: list[int]
    accepted: list[int]
    by_depth: bool = True


@dataclass(frozen=True)
class Reply:
    seconds: float  # from the call to the last token of the last prompt
    tokens: list[list[int]]  # new tokens of each prompt, in the prompts' order
    spec: Spec | None = None

    @staticmethod
    def from_json(found: Mapping[str, Any]) -> Reply:
        spec = found["spec"]
        return Reply(found["seconds"], found["tokens"], Spec(**spec) if spec else None)


@dataclass(frozen=True)
class Options:
    """The options of a runner. model: a checkpoint folder, or a file if dtype is "gguf". drafts: MTP drafts
    per step; 0: off."""

    model: str
    threads: int
    dtype: str
    drafts: int
    folder: str  # the folder in which install.sh has installed the peer

    def arguments(self) -> list[str]:
        return [f"--{name}={value}" for name, value in asdict(self).items()]

    @staticmethod
    def parse() -> Options:
        parser = argparse.ArgumentParser()
        parser.add_argument("--model", required=True)
        parser.add_argument("--threads", type=int, required=True)
        parser.add_argument("--dtype", required=True)
        parser.add_argument("--drafts", type=int, required=True)
        parser.add_argument("--folder", required=True)
        return Options(**vars(parser.parse_args()))


# (prompts, max_tokens) -> reply
Generate = Callable[[list[list[int]], int], Reply]


def serve(start: Callable[[Options], tuple[str, Mapping[str, Any], Generate]]) -> None:
    """A runner's main: starts the engine and answers until stdin ends. start -> (name, settings, generate).

    The engine's own output goes to stderr, so that stdout has only replies.
    """
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(message: Mapping[str, Any]) -> None:
        print(json.dumps(message), file=replies, flush=True)

    name, settings, generate = start(Options.parse())
    say({"engine": name, "settings": dict(settings)})
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            say(asdict(generate(asked["prompts"], asked["max_tokens"])))
        # The benchmark reports any error of an engine.
        except Exception as e:
            say({"error": f"{type(e).__name__}: {e}"})
