"""Converts a DeepSeek-V3 checkpoint to GGUF in bf16, with llama.cpp's converter and with the MTP layer.

    python convert_gguf.py LLAMA_CPP_FOLDER MODEL_FOLDER OUT.gguf         (in the environment "llamacpp")

Two things of the converter are changed. It finds the name of a tokenizer's splitting rules by a hash of the
token ids of a text, and knows only the hashes of published vocabularies; ours splits like DeepSeek-V3's. And
it drops the MTP layer of DeepSeek-V3 (skip_mtp), but keeps that of GLM-4.7-Flash, which has the same layers
and the same architecture in GGUF ("deepseek2"). So its class for that model converts ours. The weights are
not changed.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path


def main(llama_cpp: Path, model: Path, out: Path) -> None:
    sys.path[:0] = [str(llama_cpp), str(llama_cpp / "gguf-py")]
    from conversion import ModelBase, deepseek, get_model_class

    glm_lite = get_model_class("Glm4MoeLiteForCausalLM")
    get_model_class("DeepseekV3ForCausalLM")

    class DeepseekV3WithMtp(glm_lite):  # type: ignore[misc, valid-type]
        model_arch = glm_lite.model_arch

        def set_vocab(self) -> None:
            deepseek.DeepseekV2Model.set_vocab(self)

        def get_vocab_base_pre(self, tokenizer: object) -> str:
            return "deepseek-v3"

    ModelBase.register("DeepseekV3ForCausalLM")(DeepseekV3WithMtp)
    part = out.with_suffix(".part.gguf")
    sys.argv = ["convert_hf_to_gguf.py", str(model), "--outtype", "bf16", "--outfile", str(part)]
    runpy.run_path(str(llama_cpp / "convert_hf_to_gguf.py"), run_name="__main__")
    os.replace(part, out)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
