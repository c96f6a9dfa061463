"""The registry: what is served, what is refused and how."""

import pytest

from nextn.families import registry


def test_architectures_before_model_type():
    named = {"architectures": ["Other", "DeepseekV3ForCausalLM"], "model_type": "kimi_k2"}
    assert registry.architecture(named) == "DeepseekV3ForCausalLM"
    assert registry.architecture({"model_type": "deepseek_v3"}) == "DeepseekV3ForCausalLM"


@pytest.mark.parametrize("name", ["DeepseekV3ForCausalLMNextN", "DeepseekMTPForCausalLM"])
def test_an_export_of_the_mtp_layer_is_no_model(name):
    with pytest.raises(ValueError, match="MTP layer without its model; name it by --speculative-draft-model"):
        registry.architecture({"architectures": [name]})


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"architectures": ["GptOssForCausalLM"], "model_type": "deepseek_v3"}, "'GptOssForCausalLM'"),
        ({"model_type": "gpt_oss"}, "'gpt_oss'"),
        ({}, "None"),
    ],
)
def test_unsupported_is_named_with_the_supported(config, name):
    with pytest.raises(
        ValueError, match=f"^a/config.json: .*{name}.*supported are DeepseekV3.*, Qwen3ForCausalLM$"
    ):
        registry.architecture(config, "a/config.json")
