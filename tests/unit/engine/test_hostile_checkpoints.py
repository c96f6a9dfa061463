"""Configs, options and token maps that ask for more than a machine has: one clear error each, in a process
that may take one GiB more of address space than it has when torch is there. And weights that are no numbers,
in an engine that is to serve them all the same."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from support.all_cases import few_or_all
from support.checkpoints import random_tensors, tiny_config, write_checkpoint

from nextn.config import EngineConfig
from nextn.engine.engine import Engine
from nextn.families.config import ModelConfig
from nextn.families.files import CheckpointError
from nextn.models.names import expected_tensors
from nextn.request import Request, SamplingParams

CONFIG = tiny_config()
BUILD = """
import json, resource, sys
from pathlib import Path
from nextn.config import EngineConfig
from nextn.engine.build import build
folder = Path(sys.argv[1])
good = json.loads((folder / "config.json").read_text())
taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + (1 << 30),) * 2)
for changes, options in json.loads(sys.stdin.read()):
    (folder / "config.json").write_text(json.dumps(good | changes))
    common = {"model_path": str(folder), "threads": 1, "kernel_backend": "reference"}
    try:
        built = build(EngineConfig(**common | options))
        said = f"built for {built.context_length}"
    except ValueError as e:
        said = str(e)
    print(json.dumps(said), flush=True)
"""
HUGE = 10**9
DUMMY = {"load_format": "dummy"}
FILES = [
    ({"num_hidden_layers": HUGE}, {}, "config.json: num_hidden_layers is 1000000000; the files hold layers"),
    ({"n_routed_experts": HUGE}, {}, "config.json: n_routed_experts is 1000000000; the files hold experts"),
    ({"vocab_size": HUGE}, {}, "config.json: vocab_size is 1000000000; model.embed_tokens.weight"),
    ({"intermediate_size": 10**18}, {}, f"config.json: intermediate_size is {10**18}; "),
    ({"hidden_size": HUGE}, {}, "config.json: hidden_size is 1000000000; "),
    ({"num_nextn_predict_layers": HUGE}, {}, "built for 256"),
    ({"max_position_embeddings": 10**12}, {}, "built for 32768"),
    ({"max_position_embeddings": 10**12}, {"context_length": 10**9}, "built for 32768"),
    ({"max_position_embeddings": 10**12}, {"kv_cache_tokens": 10**11}, "--kv-cache-tokens is 100000000000: "),
    ({"rope_theta": 10**400}, {}, "it must be between 1e-30 and 1e+30"),
    ({"max_position_embeddings": 10**40}, {}, "it must be an integer below 2**63"),
    ({}, {"kv_cache_tokens": 10**12}, "--kv-cache-tokens is 1000000000000: the engine would take"),
    ({}, {"context_length": 10**12}, "--context-length is 1000000000000: the model's own longest is 256"),
    ({}, {"model_path": "fake:0.9", "kv_cache_tokens": 10**12}, "--kv-cache-tokens is 1000000000000: "),
    ({}, {"speculative_token_map": "{map}"}, "cannot be read: it has 1000000000000 ids, the model has 48"),
    ({}, {}, "built for 256"),
]
MADE_UP = [
    ({field: HUGE, **more}, DUMMY, f"config.json: {field} is 1000000000: the engine would take ")
    for field, more in {
        "num_hidden_layers": {},
        "n_routed_experts": {},
        "vocab_size": {},
        "hidden_size": {},
        "num_attention_heads": {"num_key_value_heads": HUGE},
        "intermediate_size": {},
        "moe_intermediate_size": {},
        "n_shared_experts": {},
        "q_lora_rank": {},
        "kv_lora_rank": {},
        "qk_nope_head_dim": {},
        "v_head_dim": {},
    }.items()
]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the limit of address space is not kept")
def test_hostile_checkpoints(tmp_path):
    tensors = random_tensors(expected_tensors(ModelConfig.from_dict(CONFIG), 1))
    folder = write_checkpoint(tmp_path / "model", CONFIG, tensors)
    token_map = tmp_path / "map.pt"
    torch.save(torch.tensor([1]).expand(10**12), token_map)
    cases = [
        (changes, {k: str(token_map) if v == "{map}" else v for k, v in options.items()}, wanted)
        for changes, options, wanted in FILES + MADE_UP
    ]
    asked = json.dumps([(changes, options) for changes, options, _ in cases])
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(folder)], input=asked, capture_output=True, text=True, timeout=200
    )
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(said) == len(cases), (cases[len(said)], done.stderr)
    for (changes, options, wanted), answer in zip(cases, said, strict=True):
        assert wanted in answer, (changes, options, answer)


OF_MTP = ["model.layers.3.eh_proj.weight", "model.layers.3.mlp.gate.weight", "model.layers.3.enorm.weight"]
OF_TARGET = [
    "model.layers.1.self_attn.o_proj.weight", "model.layers.2.mlp.gate.weight",
    "model.layers.1.mlp.gate.e_score_correction_bias", "lm_head.weight", "model.embed_tokens.weight",
    "model.layers.1.mlp.experts.0.up_proj.weight",  # few tokens meet it, and spoil no others
]  # fmt: skip


def texts(folder, **options):
    """Of greedy requests and of sampled ones: tokens, why each ended, the code of its error."""
    config = EngineConfig(
        model_path=str(folder), threads=1, kv_cache_tokens=256, allow_non_finite_weights=True,
        step_cost_cache="off", check_integrity=True, **options,
    )  # fmt: skip
    engine = Engine(config)
    found = {}
    for i in range(12):
        params = SamplingParams(max_tokens=6, temperature=i % 2, seed=i, ignore_eos=True)
        engine.add(Request(str(i), [3, 4 + i, 5], params))
        found[str(i)] = []
    ends = {}
    while engine.has_work():
        for out in engine.step():
            found[out.rid] += out.tokens
            ends[out.rid] = (out.finish_reason, out.error_code)
    assert engine.stats().used_tokens == 0
    return found, ends


VALUES = [float("nan"), float("inf")]
# Plain torch is slow: of each name one value.
FEW = [
    *(("auto", name, value) for name in OF_MTP + OF_TARGET for value in VALUES),
    *(("reference", name, VALUES[i % 2]) for i, name in enumerate(OF_MTP + OF_TARGET)),
]
OTHERS = [("reference", name, VALUES[1 - i % 2]) for i, name in enumerate(OF_MTP + OF_TARGET)]


@pytest.mark.parametrize(("kernels", "name", "value"), few_or_all(FEW, OTHERS), ids=str)
def test_weights_that_are_no_numbers(tmp_path, name, value, kernels):
    """They are named; served all the same, they cost drafts alone, or end requests and not the engine."""
    tensors = random_tensors(expected_tensors(ModelConfig.from_dict(CONFIG), 1))
    good = write_checkpoint(tmp_path / "good", CONFIG, tensors)
    tensors[name].fill_(value)
    bad = write_checkpoint(tmp_path / "bad", CONFIG, tensors)
    with pytest.raises(CheckpointError, match=f"NaN or infinite values: {name}"):
        Engine(EngineConfig(model_path=str(bad), threads=1, kv_cache_tokens=256, kernel_backend=kernels))
    plain = texts(bad, kernel_backend=kernels, speculative_num_steps=0)
    if name in OF_MTP:
        assert plain == texts(good, kernel_backend=kernels, speculative_num_steps=0)
    else:
        assert set(plain[1].values()) <= {("length", None), ("error", "logits_not_finite")}
    for shape in ({"speculative_num_steps": 2}, {"speculative_num_steps": 3, "speculative_eagle_topk": 2}):
        assert texts(bad, kernel_backend=kernels, **shape) == plain
