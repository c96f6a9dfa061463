"""JoyAI-LLM-Flash: DeepSeek-V3, but for its NextN module, which is dense.

Its config.json names DeepSeek-V3's class; what tells it apart is model_type, joyai_llm_flash. The name here is
that of SGLang's class of the module (JoyAILLMFlashForCausalLMNextN) without the ending.
"""

from __future__ import annotations

from dataclasses import replace

from nextn.families import deepseek_v3

NAMES, parse = deepseek_v3.NAMES, deepseek_v3.parse
# The other names are those that exporters of DeepSeek-V3's modules write, whatever they are given.
MTP = replace(
    deepseek_v3.MTP, dense=True, exported=("JoyAILLMFlashForCausalLMNextN", *deepseek_v3.MTP.exported)
)
