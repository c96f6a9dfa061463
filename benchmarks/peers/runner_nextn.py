"""The runner of nextn: its engine in-process. See protocol.py."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from protocol import Generate, Options, Reply, Spec, serve

import nextn
from nextn.config import EngineConfig
from nextn.engine.engine import Engine
from nextn.request import Request, SamplingParams
from nextn.stats import SpecStats


def start(options: Options) -> tuple[str, Mapping[str, Any], Generate]:
    dtype = "auto" if options.dtype == "gguf" else options.dtype
    engine = Engine(
        EngineConfig(
            model_path=options.model, dtype=dtype, threads=options.threads, device="cpu",
            speculative_num_steps=options.drafts, disable_radix_cache=True,
        )
    )  # fmt: skip

    def generate(prompts: list[list[int]], max_tokens: int) -> Reply:
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        tokens: dict[str, list[int]] = {str(i): [] for i in range(len(prompts))}
        spec = SpecStats()
        begin = time.perf_counter()
        for rid, prompt in zip(tokens, prompts, strict=True):
            engine.add(Request(rid, list(prompt), params))
        while engine.has_work():
            for out in engine.step():
                tokens[out.rid] += out.tokens
                if out.spec is not None:
                    spec.merge(out.spec)
        seconds = time.perf_counter() - begin
        found = Spec(spec.proposed, spec.accepted) if options.drafts else None
        return Reply(seconds, list(tokens.values()), found)

    settings = {key: engine.startup[key] for key in ("dtype", "threads", "drafts")}
    return f"nextn {nextn.__version__}", settings, generate


if __name__ == "__main__":
    serve(start)
