"""The registry: what is served, what is refused and how."""

import pytest

from nextn.families import registry

NEXTN_NAMES = (
    "DeepseekV3ForCausalLMNextN", "DeepseekMTPForCausalLM", "Glm4MoeLiteForCausalLMNextN",
    "JoyAILLMFlashForCausalLMNextN",
)  # fmt: skip


def test_architectures_before_model_type():
    named = {"architectures": ["Other", "DeepseekV3ForCausalLM"], "model_type": "kimi_k2"}
    assert registry.architecture(named) == "DeepseekV3ForCausalLM"
    assert registry.architecture({"model_type": "deepseek_v3"}) == "DeepseekV3ForCausalLM"
    assert registry.architecture({"model_type": "glm4_moe_lite"}) == "Glm4MoeLiteForCausalLM"


@pytest.mark.parametrize("named", [None, ["DeepseekV3ForCausalLM"]])
def test_joyai_has_deepseek_v3_s_architecture_and_a_model_type_of_its_own(named):
    config = {"architectures": named, "model_type": "joyai_llm_flash"}
    assert registry.architecture(config) == "JoyAILLMFlashForCausalLM"


def test_every_family_has_what_is_asked_of_it():
    assert registry.FAMILIES.keys() == set(registry.MODEL_TYPES.values())
    for name in registry.FAMILIES:
        family = registry.family_of(name)
        assert family.NAMES
        assert family.MTP.exported
        assert callable(family.parse)


@pytest.mark.parametrize("name", NEXTN_NAMES)
def test_an_export_of_the_mtp_layer_is_no_model(name):
    with pytest.raises(
        ValueError, match="MTP layer without its model; give it with --speculative-draft-model"
    ):
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
    supported = ", ".join(registry.FAMILIES)
    with pytest.raises(ValueError, match=f"^a/config.json: .*{name}.*supported are {supported}$"):
        registry.architecture(config, "a/config.json")
