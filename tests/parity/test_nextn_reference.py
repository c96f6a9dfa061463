"""The reference's NextN module is transformers' own MtpModel, where the installed transformers has one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
import transformers.modeling_layers
from parity.nextn_reference import NextNReference
from parity.oracle import load_oracle, random_checkpoint
from support.checkpoints import write_checkpoint

MtpModel = getattr(transformers.modeling_layers, "MtpModel", None)


@pytest.mark.skipif(MtpModel is None, reason="this transformers has no MtpModel")
@pytest.mark.parametrize("kind", ["yarn", "no yarn", "GLM"])
def test_module_is_transformers_own(tmp_path: Path, kind: str) -> None:
    architecture = "Glm4MoeForCausalLM" if kind == "GLM" else "DeepseekV3ForCausalLM"
    config, tensors = random_checkpoint({} if kind == "yarn" else {"rope_scaling": None}, 4, architecture)
    folder = write_checkpoint(tmp_path, config, tensors)
    reference = NextNReference(folder)
    main = load_oracle(folder)
    layers = main.config.num_hidden_layers
    # Where MtpModel learns which tensors are the module's; the class only knows DeepSeek-V3's own layer 61.
    main._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{layers}\..*"]
    mtp = MtpModel.from_pretrained(main).eval()
    tokens = random.Random(4).choices(range(config["vocab_size"]), k=30)
    with torch.no_grad():
        hidden = reference.hidden(tokens)[:-1]
        mine = reference.module(hidden, tokens[1:])
        # transformers counts the position of the token, not of the state: the same to a relative embedding.
        positions = torch.arange(1, len(tokens))[None]
        theirs = mtp.forward_layer(0, hidden[None], positions, None, input_ids=torch.tensor([tokens[1:]]))[0]
    assert (mine - theirs).abs().max() < 1e-4
    assert mine.std() > 0.5
