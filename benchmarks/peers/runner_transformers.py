"""The runner of transformers: generate() with its defaults, without MTP. See protocol.py."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch
import transformers
from protocol import Generate, Options, Reply, serve


def start(options: Options) -> tuple[str, Mapping[str, Any], Generate]:
    torch.set_num_threads(options.threads)
    transformers.utils.logging.set_verbosity_error()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        options.model, dtype=getattr(torch, options.dtype)
    ).eval()
    model.generation_config = transformers.GenerationConfig(
        do_sample=False, bos_token_id=0, eos_token_id=None, pad_token_id=0
    )

    @torch.inference_mode()
    def generate(prompts: list[list[int]], max_tokens: int) -> Reply:
        assert len({len(prompt) for prompt in prompts}) == 1, "one length, or padding would be measured"
        begin = time.perf_counter()
        ids = torch.tensor(prompts)
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens)
        seconds = time.perf_counter() - begin
        return Reply(seconds, out[:, ids.shape[1] :].tolist())

    config = model.config
    settings = {
        "dtype": options.dtype,
        "threads": torch.get_num_threads(),
        "attention": config._attn_implementation,
        "experts": getattr(config, "_experts_implementation", None),
    }
    return f"transformers {transformers.__version__}", settings, generate


if __name__ == "__main__":
    serve(start)
