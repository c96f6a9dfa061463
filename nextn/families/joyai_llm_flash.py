"""JoyAI-LLM-Flash: DeepSeek-V3 with a dense NextN module.

Its config.json names DeepSeek-V3's class. Only model_type, joyai_llm_flash, identifies it. The name of the
architecture in nextn comes from SGLang's class for the module, JoyAILLMFlashForCausalLMNextN.
"""

from __future__ import annotations

from dataclasses import replace

from nextn.families import deepseek_v3

NAMES, parse = deepseek_v3.NAMES, deepseek_v3.parse
# DeepSeek-V3's names are included because its exporters write them for every model.
MTP = replace(
    deepseek_v3.MTP, dense=True, exported=("JoyAILLMFlashForCausalLMNextN", *deepseek_v3.MTP.exported)
)
