"""How the benchmark talks to an engine: lines of JSON over stdin and stdout of a runner process.

    <- {"engine": "vLLM 0.32.0", "settings": {...}}                        once the model is loaded
    -> {"prompts": [[5, 6, 7], ...], "max_tokens": 64}
    <- {"seconds": 1.9, "tokens": [[8, 9, ...], ...], "spec": {...}}       or {"error": "..."}

A runner completes all prompts in one batch, greedily, ends no text early and keeps no prefix cache. This file
and the runners are read by interpreters that know nothing of nextn: standard library only.
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
    """What speculation did in one call.

    proposed[j], accepted[j]: drafts of depth j + 1 that were verified, and that held. Only their ratio can
    be compared: at the end of a text nextn proposes as many as there is room for, while vLLM proposes, and
    counts as accepted, drafts beyond it. An engine that does not tell depths apart adds all up as depth 1 and
    sets by_depth to False.
    """

    proposed: list[int]
    accepted: list[int]
    by_depth: bool = True


@dataclass(frozen=True)
class Reply:
    seconds: float  # from the call to the last token of the last prompt
    tokens: list[list[int]]  # per prompt, in the prompts' order
    spec: Spec | None = None

    @staticmethod
    def from_json(found: Mapping[str, Any]) -> Reply:
        spec = found["spec"]
        return Reply(found["seconds"], found["tokens"], Spec(**spec) if spec else None)


@dataclass(frozen=True)
class Options:
    """Of every runner. model: a checkpoint folder; a file where dtype is "gguf". drafts: MTP drafts a step,
    0 is off."""

    model: str
    threads: int
    dtype: str
    drafts: int
    folder: str  # where install.sh put the peer

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


# prompts, max_tokens -> what came of them
Generate = Callable[[list[list[int]], int], Reply]


def serve(start: Callable[[Options], tuple[str, Mapping[str, Any], Generate]]) -> None:
    """A runner's main: starts the engine and answers until stdin ends. start -> (name, settings, generate).

    Whatever the engine prints goes to stderr; stdout has nothing but replies.
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
        # Whatever an engine raises is the benchmark's to report.
        except Exception as e:
            say({"error": f"{type(e).__name__}: {e}"})
