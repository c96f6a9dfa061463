"""quantization_config: the tools' settings as they are read, and what is refused by key and value."""

import copy
import re

import pytest
from support.checkpoints import tiny_config
from support.packed import awq_config, ct_config, gptq_config

from nextn.families.config import ModelConfig
from nextn.families.quantization import AWQ, COMPRESSED_TENSORS, GPTQ, PackedCodes


def parsed(config):
    return ModelConfig.from_dict(tiny_config(quantization_config=config)).quantization


def weights(**changes):
    """compressed-tensors' config with other settings of the weights."""
    config = copy.deepcopy(ct_config(128))
    config["config_groups"]["group_0"]["weights"] |= changes
    return config


def scheme(**changes):
    config = copy.deepcopy(ct_config(128))
    config["config_groups"]["group_0"] |= changes
    return config


DYNAMIC = {
    r"+:.*down_proj": {"bits": 8, "group_size": 32},
    r"-:.*\.mlp\.gate": {},
    "up_proj": {"desc_act": True},
}


@pytest.mark.parametrize(
    ("config", "want"),
    [
        (ct_config(128), PackedCodes(COMPRESSED_TENSORS, ((4, 128),))),
        (ct_config(0, bits=8), PackedCodes(COMPRESSED_TENSORS, ((8, 0),))),
        (weights(actorder="weight"), PackedCodes(COMPRESSED_TENSORS, ((4, 128),))),
        (weights(strategy=None), PackedCodes(COMPRESSED_TENSORS, ((4, 128),))),
        (weights(strategy=None, group_size=-1), PackedCodes(COMPRESSED_TENSORS, ((4, 0),))),
        (gptq_config(64), PackedCodes(GPTQ, ((4, 64),), minus_one=True)),
        (
            gptq_config(0, sym=True, desc_act=True),
            PackedCodes(GPTQ, ((4, 0),), symmetric=True, reordered=True, minus_one=True),
        ),
        (gptq_config(64, checkpoint_format="gptq_v2", bits=8), PackedCodes(GPTQ, ((8, 64),))),
        (
            gptq_config(64, sym=True, dynamic=DYNAMIC),
            PackedCodes(GPTQ, ((4, 64), (8, 32)), symmetric=True, reordered=True, minus_one=True),
        ),
        (awq_config(128), PackedCodes(AWQ, ((4, 128),))),
        (awq_config(64, version="GEMM"), PackedCodes(AWQ, ((4, 64),))),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 32}, PackedCodes(AWQ, ((4, 32),))),
    ],
)
def test_what_is_read(config, want):
    assert parsed(config) == want


def test_two_settings():
    config = copy.deepcopy(ct_config(128))
    config["config_groups"]["group_1"] = ct_config(0, bits=8)["config_groups"]["group_0"]
    assert parsed(config).schemes == ((4, 128), (8, 0))


def test_patterns_are_not_run():
    """No name is matched: one that would take forever, or is no pattern, does no harm."""
    bad = ["re:(a+)+$", "re:(", "x" * 100_000]
    assert parsed(ct_config(128, ignore=bad)) == parsed(ct_config(128))
    assert parsed(gptq_config(32, dynamic={"+:(": {"group_size": 64}})).schemes == ((4, 32), (4, 64))
    assert parsed(awq_config(32, modules_to_not_convert=bad)) == parsed(awq_config(32))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (ct_config(128, format="int-quantized"), "format is 'int-quantized'; supported: 'pack-quantized'"),
        (ct_config(128, kv_cache_scheme={"num_bits": 8}), "kv_cache_scheme is {'num_bits': 8}; supported"),
        (ct_config(128, sparsity_config={"format": "sparse-24-bitmask"}), "sparsity_config.format is"),
        (ct_config(128, transform_config={"R1": {}}), "transform_config is {'R1': {}}; supported: None"),
        (ct_config(128, ignore="lm_head"), "ignore is 'lm_head'; it must be a list of strings"),
        (ct_config(128, config_groups={}), "config_groups is {}; it must say how weights are packed"),
        (ct_config(128, config_groups={"W4A16": ["Linear"]}), "W4A16 is ['Linear']; it must be"),
        (scheme(weights=None), "it must be an object with weights"),
        (scheme(input_activations={"num_bits": 8}), "input_activations is {'num_bits': 8}; supported: None"),
        (scheme(targets=[1]), "targets is [1]; it must be a list of strings"),
        (weights(num_bits=3), "config_groups.group_0.weights.num_bits is 3; supported: 8 or 4"),
        (weights(type="float"), "weights.type is 'float'; supported: 'int'"),
        (weights(actorder="group"), "weights.actorder is 'group'; supported: None or False or 'weight'"),
        (weights(strategy="block"), "weights.strategy is 'block'; supported: group, channel"),
        (weights(strategy=None, group_size=None), "weights.strategy is None; supported: group, channel"),
        (weights(group_size=0), "weights.group_size is 0; it must be -1 or a positive integer"),
        (weights(group_size=True), "weights.group_size is True; it must be -1 or a positive integer"),
        (weights(dynamic=True), "weights.dynamic is True; supported: False"),
        (gptq_config(128, bits=3), "bits is 3; supported: 4 or 8"),
        (gptq_config(128, bits=None), "bits is None; supported: 4 or 8"),
        (gptq_config(-2), "group_size is -2; it must be -1 or a positive integer"),
        (gptq_config(128, group_size="128"), "group_size is '128'; it must be -1 or a positive integer"),
        (gptq_config(128, checkpoint_format="marlin"), "checkpoint_format is 'marlin'; supported: 'gptq' or"),
        (gptq_config(128, format="gptq_v2"), "checkpoint_format is 'gptq'; it contradicts format, 'gptq_v2'"),
        (gptq_config(128, is_marlin_format=True), "is_marlin_format is True; supported: False"),
        (gptq_config(128, pack_dtype="int64"), "pack_dtype is 'int64'; supported: 'int32'"),
        (gptq_config(128, adapter={"rank": 8}), "adapter is {'rank': 8}; supported: None"),
        (gptq_config(128, desc_act="yes"), "desc_act is 'yes'; it must be true or false"),
        (gptq_config(128, dynamic={"up": {"bits": 2}}), "bits is 2; supported: 4 or 8"),
        (gptq_config(128, dynamic=[1]), "dynamic is [1]; it must be a JSON object"),
        (awq_config(128, bits=8), "bits is 8; supported: 4"),
        (awq_config(128, w_bit=8), "bits is 4; it contradicts w_bit, 8"),
        (awq_config(128, version="gemv"), "version is 'gemv'; supported: gemm"),
        (awq_config(128, zero_point=False), "zero_point is False; supported: True"),
        (awq_config(128, modules_to_not_convert={}), "modules_to_not_convert is {}; it must be a list"),
        ({"quant_method": "awq", "group_size": 128}, "bits is missing; it is required"),
        ({"quant_method": ["gptq"]}, "quant_method is ['gptq']; supported: 'fp8' or"),
    ],
)  # fmt: skip
def test_what_is_refused(config, said):
    with pytest.raises(ValueError, match=re.escape("config.json: quantization_config.")) as raised:
        parsed(config)
    assert said in str(raised.value)
