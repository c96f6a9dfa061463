"""The runner of vLLM: its CPU backend, offline and compiled. See protocol.py. variants.py sets its
environment."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import vllm
from protocol import Generate, Options, Reply, Spec, serve
from vllm.v1.metrics.reader import Counter, Vector

COUNTERS = "vllm:spec_decode_num_drafts", "vllm:spec_decode_num_accepted_tokens_per_pos"


def start(options: Options) -> tuple[str, Mapping[str, Any], Generate]:
    speculation = {"method": "mtp", "num_speculative_tokens": options.drafts} if options.drafts else None
    llm = vllm.LLM(
        options.model,
        dtype=options.dtype,
        max_model_len=2304,
        max_num_seqs=32,
        max_num_batched_tokens=2048,
        enable_prefix_caching=False,
        speculative_config=speculation,
        disable_log_stats=False,
        seed=0,
    )

    def counted() -> tuple[int, list[int]]:
        """(number of steps with drafts, accepted drafts by depth) since the start."""
        steps, accepted = 0, [0] * options.drafts
        for metric in llm.get_metrics():
            if metric.name == COUNTERS[0] and isinstance(metric, Counter):
                steps += metric.value
            elif metric.name == COUNTERS[1] and isinstance(metric, Vector):
                accepted = [a + b for a, b in zip(accepted, metric.values, strict=True)]
        return steps, accepted

    def generate(prompts: list[list[int]], max_tokens: int) -> Reply:
        params = vllm.SamplingParams(
            max_tokens=max_tokens, temperature=0.0, ignore_eos=True, detokenize=False
        )
        steps_before, accepted_before = counted()
        begin = time.perf_counter()
        done = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        seconds = time.perf_counter() - begin
        steps, accepted = counted()
        spec = Spec(
            [steps - steps_before] * options.drafts,
            [now - then for now, then in zip(accepted, accepted_before, strict=True)],
        )
        return Reply(seconds, [list(d.outputs[0].token_ids) for d in done], spec if options.drafts else None)

    settings = {
        "dtype": options.dtype,
        "threads": options.threads,
        "drafts": options.drafts,
        "compiled": True,
    }
    return f"vLLM {vllm.__version__}", settings, generate


if __name__ == "__main__":
    serve(start)
