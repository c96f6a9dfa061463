"""JoyAI-LLM-Flash: DeepSeek-V3, but for its NextN module, which is dense.

Its config.json names DeepSeek-V3's class; what tells it apart is model_type, joyai_llm_flash. SGLang's class
of the module, JoyAILLMFlashForCausalLMNextN, gives the architecture its name here.
"""

from __future__ import annotations

from dataclasses import replace

from nextn.families import deepseek_v3

NAMES, parse = deepseek_v3.NAMES, deepseek_v3.parse
# The other names are those that exporters of DeepSeek-V3's modules write, whatever they are given.
MTP = replace(
    deepseek_v3.MTP, dense=True, exported=("JoyAILLMFlashForCausalLMNextN", *deepseek_v3.MTP.exported)
)
