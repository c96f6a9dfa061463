"""Engines on families with grouped-query attention: published shapes, layers left out, refusals."""

import json

import pytest
from parity.engine_steps import make_engine, run
from parity.oracle import random_checkpoint
from support.all_cases import few_or_all
from support.checkpoints import gqa_config, write_checkpoint
from support.published import PUBLISHED

from nextn.models.export import export_mtp
from nextn.request import Request, SamplingParams

# What makes weights large and changes no code path; attention is as published.
NARROW = {"hidden_size": 96, "intermediate_size": 80, "vocab_size": 300, "bos_token_id": 0, "eos_token_id": 1}
FEW_EXPERTS = {"moe_intermediate_size": 24, "n_routed_experts": 16}
WORK = {
    "a": ([5, 9, 2, 8, 5, 9, 2, 8, 5, 9], SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)),
    "b": ([7, 1, 30] * 9, SamplingParams(max_tokens=12, temperature=1, seed=3, ignore_eos=True)),
}


def texts(engine):
    found = {rid: list(prompt) for rid, (prompt, _) in WORK.items()}
    for rid, (prompt, params) in WORK.items():
        engine.add(Request(rid, list(prompt), params))
    while engine.has_work():
        for out in engine.step():
            found[out.rid] += out.tokens
    return found


# GLM-4.5-Air is GLM-4.6 without norms of queries and keys, Qwen3-8B is Qwen3-0.6B with a head of its own.
FEW = ("GLM-4.6", "MiMo-7B-RL", "Qwen3-0.6B", "Llama-3.1-8B", "SmolLM2-135M")


@pytest.mark.parametrize("name", few_or_all(FEW, ["GLM-4.5-Air", "Qwen3-8B"]))
def test_published_shapes_start(name, tmp_path):
    """With two layers of random weights, and with drafts the text of without."""
    config, _, module = PUBLISHED[name]
    changes = NARROW | (FEW_EXPERTS if "n_routed_experts" in config else {})
    changes["head_dim"] = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    options = {"load_format": "dummy", "num_hidden_layers_override": 2}
    want = texts(make_engine(tmp_path, 0, **options))
    drafting = {} if module else {"speculative_algorithm": "NGRAM"}
    assert texts(make_engine(tmp_path, 2, **drafting, **options)) == want


def test_the_smallest_as_it_is(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED["SmolLM2-135M"][0]))
    engine = make_engine(tmp_path, 0, load_format="dummy", num_hidden_layers_override=1)
    assert all(len(text) == len(WORK[rid][0]) + 12 for rid, text in texts(engine).items())


@pytest.mark.parametrize("architecture", ["DeepseekV3ForCausalLM", "Glm4MoeForCausalLM", "MiMoForCausalLM"])
def test_the_first_layers_of_a_checkpoint(architecture, tmp_path):
    """The model of two layers of three, drafted for by the whole one's module; all others are skipped."""
    config, tensors = random_checkpoint({"num_hidden_layers": 3}, 6, architecture)
    write_checkpoint(tmp_path / "whole", config, tensors)
    renamed = {
        name.replace("model.layers.3.", "model.layers.2.") if ".layers.3." in name else name: tensor
        for name, tensor in tensors.items()
        if ".layers.2." not in name
    }
    write_checkpoint(tmp_path / "two", {**config, "num_hidden_layers": 2}, renamed)
    whole = make_engine(tmp_path / "whole", 2, num_hidden_layers_override=2)
    two = make_engine(tmp_path / "two", 2)
    traces = [{rid: t.steps for rid, t in run(engine, WORK).items()} for engine in (whole, two)]
    assert traces[0] == traces[1]
    assert any(step.drafts for step in traces[0]["a"])
    one = {"num_hidden_layers_override": 1}  # all of which are dense, where the module is not
    apart = make_engine(tmp_path / "whole", 2, speculative_draft_model_path=str(tmp_path / "whole"), **one)
    assert texts(apart) == texts(make_engine(tmp_path / "whole", 2, **one))


@pytest.mark.parametrize(
    ("architecture", "modules"), [("Glm4MoeForCausalLM", 1), ("MiMoForCausalLM", 2), ("LlamaForCausalLM", 1)]
)
def test_modules_in_a_folder_of_their_own(architecture, modules, tmp_path):
    """Exported, or another whole checkpoint: drafts and tokens are those of the checkpoint that has both."""
    config, tensors = random_checkpoint({"num_nextn_predict_layers": modules}, 6, architecture)
    whole = write_checkpoint(tmp_path / "whole", config, tensors)
    others = {n: t for n, t in tensors.items() if ".layers.3." not in n and "mtp_layers" not in n}
    assert len(tensors) - len(others) > 10 * modules
    target = write_checkpoint(tmp_path / "target", {**config, "num_nextn_predict_layers": 0}, others)
    assert export_mtp(whole, tmp_path / "alone").layers == modules
    want = {rid: trace.steps for rid, trace in run(make_engine(whole, 2), WORK).items()}
    assert any(step.drafts for step in want["a"])
    for folder in (tmp_path / "alone", whole):
        engine = make_engine(target, 2, speculative_draft_model_path=str(folder))
        assert engine.info.nextn_layers == modules
        assert {rid: trace.steps for rid, trace in run(engine, WORK).items()} == want
    with pytest.raises(ValueError, match="this folder holds an MTP layer without its model"):
        make_engine(tmp_path / "alone", 0)


def test_a_drafter_of_another_family(tmp_path):
    write_checkpoint(tmp_path / "a", *random_checkpoint({}, 6, "Qwen3ForCausalLM"))
    write_checkpoint(tmp_path / "b", *random_checkpoint({}, 6, "Glm4MoeForCausalLM"))
    with pytest.raises(ValueError, match="architecture is 'Glm4MoeForCausalLM', the target's is 'Qwen3For"):
        make_engine(tmp_path / "a", 2, speculative_draft_model_path=str(tmp_path / "b"))


def test_copies_that_a_family_does_not_have(tmp_path):
    whole = write_checkpoint(tmp_path / "whole", *random_checkpoint({}, 6, "MiMoForCausalLM"))
    with pytest.raises(ValueError, match="MiMoForCausalLM: its NextN modules have no copies of embedding"):
        export_mtp(whole, tmp_path / "alone", with_shared=True)
    assert not (tmp_path / "alone").exists()


ELSEWHERE = {
    "trees": {"speculative_eagle_topk": 3, "speculative_num_draft_tokens": 6},
    "planned ahead": {"overlap_schedule": "on"},
    "two processes": {"tp_size": 2, "kernel_backend": "reference"},
    "retracted": {"kv_cache_tokens": 56},
    "no prefix cache": {"disable_radix_cache": True},
    "n-grams": {"speculative_algorithm": "NGRAM"},
}


@pytest.fixture(scope="module")
def glm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("glm")
    return write_checkpoint(folder, *random_checkpoint({}, 6, "Glm4MoeForCausalLM"))


# Native kernels run in two processes in tests/e2e/test_gqa_identity.py.
@pytest.mark.parametrize(
    "how",
    few_or_all(["trees", "planned ahead", "retracted", "no prefix cache", "n-grams"], ["two processes"]),
)
def test_texts_are_the_same_however_they_are_computed(how, glm):
    engine = make_engine(glm, 2, **ELSEWHERE[how])
    assert texts(engine) == texts(make_engine(glm, 0))


def test_more_layers_than_there_are(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(gqa_config("LlamaForCausalLM")))
    with pytest.raises(ValueError, match="--num-hidden-layers-override 4: the model has only 3 layers"):
        make_engine(tmp_path, 0, load_format="dummy", num_hidden_layers_override=4)
    with pytest.raises(ValueError, match=r"--num-hidden-layers-override: --model-path fake.* has no layers"):
        make_engine("fake:0.5", 0, num_hidden_layers_override=1)
    with pytest.raises(ValueError, match=r"num-hidden-layers-override.* it must be at least 1"):
        make_engine(tmp_path, 0, load_format="dummy", num_hidden_layers_override=0)


def test_what_these_families_do_not_have(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(gqa_config("LlamaForCausalLM")))
    with pytest.raises(
        ValueError, match="--prefill-attention naive: LlamaForCausalLM has one form of attention"
    ):
        make_engine(tmp_path, 0, load_format="dummy", prefill_attention="naive")
    with pytest.raises(ValueError, match="has no NextN layer to draft with"):
        make_engine(tmp_path, 2, load_format="dummy")
    assert make_engine(tmp_path, 0, load_format="dummy").info.cache_width == 2 * 2 * 8


def test_a_tensor_of_a_layer_that_is_computed_is_missed(tmp_path):
    config, tensors = random_checkpoint({}, 6, "LlamaForCausalLM")
    del tensors["model.layers.1.self_attn.k_proj.weight"]
    write_checkpoint(tmp_path, config, tensors)
    with pytest.raises(ValueError, match=r"1 missing: model\.layers\.1\.self_attn\.k_proj\.weight"):
        make_engine(tmp_path, 0, num_hidden_layers_override=2)
    make_engine(tmp_path, 0, num_hidden_layers_override=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_attention_heads": 8}, r"num_attention_heads is 8 and head_dim 16; .*q_proj.weight in the"),
        ({"num_key_value_heads": 3}, r"num_key_value_heads is 3 and head_dim 16; .*k_proj.weight in the"),
        ({"head_dim": 24}, r"num_attention_heads is 6 and head_dim 24; .*q_proj.weight in the files is"),
        ({"intermediate_size": 41}, r"intermediate_size is 41; .*gate_proj.weight in the files is"),
    ],
)
def test_a_config_that_is_not_the_files(changes, message, tmp_path):
    config, tensors = random_checkpoint({}, 6, "Qwen3ForCausalLM")
    write_checkpoint(tmp_path, {**config, **changes}, tensors)
    with pytest.raises(ValueError, match=message):
        make_engine(tmp_path, 0)
