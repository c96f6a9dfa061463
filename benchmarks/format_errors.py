"""Measures the errors of each weight format: in matrices and hidden states, in perplexity and accept length.

    python benchmarks/format_errors.py [--model-path DIR] [--output benchmarks/results]

The decoder layers' matrices are rounded to a format and widened again. Embedding, head, router, norms and
eh_proj stay unchanged. So a result depends only on the format, not on kernels. Errors and perplexity are
measured with plain torch in f32 on held-out code, accept lengths with greedy chains on the default kernels.
The NextN layer is in int8 with --quantization's formats, and in the format itself with formats of files. As
in a server, a matrix whose inputs are not whole groups is in int8 (w4a16) or Q8_0 (GGUF), and kv_b_proj is in
bf16 with w8a16 and in int8 with w4a16.

GGUF's types need `pip install gguf`. Without it, or without a quantizer for a type, they are left out. The
last line is JSON.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import math
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from last_line import tell
from safetensors.torch import save_file
from torch import Tensor

from nextn.bench.machine import this_machine
from nextn.bench.prompts import all_heldout_prompts
from nextn.config import EMBEDDED, EngineConfig, model_folder
from nextn.engine.model import make_model
from nextn.families.config import ModelConfig
from nextn.kvcache.pool import KVPool
from nextn.layers.batch import Span
from nextn.llm import LLM
from nextn.models.loader import load_checkpoint, stored_nextn_layers
from nextn.models.names import expected_tensors, nextn_prefixes, shared_tensors
from nextn.ops.int4 import quantize_int4
from nextn.ops.widen import widened
from nextn.request import SamplingParams
from nextn.tokenizer import Tokenizer

CPU = torch.device("cpu")
PAGE = 16
FP8_BLOCK, FP8_LARGEST = 128, 448.0
WATCHED = 8  # prompts whose hidden states are compared
TITLE = (
    f"{'format':<44} {'bits':>6} {'weights':>8} {'hidden: first':>13} {'last layer':>10} {'perplexity':>10} "
    f"{'2 drafts':>8} {'3 drafts':>8}"
)
Rounded = tuple[Tensor, float]  # a matrix in f32, and its bits
Round = Callable[[Tensor], Rounded]


def bf16(weight: Tensor) -> Rounded:
    return weight.bfloat16().float(), 16 * weight.numel()


def int8(weight: Tensor) -> Rounded:
    scale = weight.abs().amax(1, keepdim=True).clamp(min=1e-30) / 127
    return torch.round(weight / scale) * scale, 8 * weight.numel() + 32 * len(weight)


def int4(group: int) -> Round:
    def rounded(weight: Tensor) -> Rounded:
        n, k = weight.shape
        if k % group:
            return int8(weight)
        stored = quantize_int4(weight, group, zeros=True)
        return widened(stored, torch.float32), n * (4 * k + (16 + 8) * k // group)

    return rounded


def fp8(weight: Tensor) -> Rounded:
    """DeepSeek's published format: e4m3 with a scale for each block of 128 by 128."""
    n, k = weight.shape
    down, across = -(-n // FP8_BLOCK), -(-k // FP8_BLOCK)
    padded = torch.zeros(down * FP8_BLOCK, across * FP8_BLOCK)
    padded[:n, :k] = weight
    blocks = padded.view(down, FP8_BLOCK, across, FP8_BLOCK)
    scale = blocks.abs().amax((1, 3), keepdim=True).clamp(min=1e-30) / FP8_LARGEST
    codes = (blocks / scale).to(torch.float8_e4m3fn).float()
    return (codes * scale).view_as(padded)[:n, :k].clone(), 8 * n * k + 32 * down * across


def gguf_type(name: str) -> Round | None:
    """The rounding function of a GGUF type; None if there is no quantizer for it."""
    if importlib.util.find_spec("gguf") is None:
        return None
    import gguf

    kind = gguf.GGMLQuantizationType[name]
    quantize = gguf.quants.quantize
    if importlib.util.find_spec("gguf_blocks") is not None:  # gguf_blocks.py here has the K types
        from gguf_blocks import quantized as quantize
    block, size = gguf.GGML_QUANT_SIZES[kind]

    def rounded(weight: Tensor) -> Rounded:
        if weight.shape[1] % block:
            other = gguf_type("Q8_0")
            return other(weight) if other and name != "Q8_0" else bf16(weight)
        found = gguf.quants.dequantize(quantize(weight.numpy(), kind), kind)
        return torch.from_numpy(found), weight.numel() // block * size * 8

    try:
        rounded(torch.randn(2, 256))
    except NotImplementedError:
        return None
    return rounded


def formats() -> Iterator[tuple[str, Round, Round]]:
    """Yields (name, rounding of the target's layers, rounding of the NextN layer)."""
    yield "bf16", bf16, bf16
    yield "w8a16", int8, int8
    for group in (32, 64, 128):
        yield f"w4a16, groups of {group}", int4(group), int8
    yield "4 bits in the NextN layer too, groups of 32", int4(32), int4(32)
    yield "FP8, blocks of 128", fp8, fp8
    for name in ("Q8_0", "Q6_K", "Q5_K", "Q5_0", "Q4_K", "Q4_0"):
        if (found := gguf_type(name)) is not None:
            yield name, found, found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model-path", default=EMBEDDED)
    parser.add_argument("--prompts", type=int, default=64, help="held-out texts for the perplexity")
    parser.add_argument(
        "--drafted", type=int, default=24, help="number of these texts that are completed with drafts"
    )
    parser.add_argument("--tokens", type=int, default=64, help="tokens of a completion")
    parser.add_argument("--output", type=Path, help="folder for the result")
    args = parser.parse_args()
    logging.getLogger("nextn").setLevel(logging.ERROR)
    folder = model_folder(args.model_path)
    cfg, tensors = read(folder)
    texts = all_heldout_prompts()[: args.prompts]
    tokenizer = Tokenizer.from_folder(folder)
    prompts = [tokenizer.encode(text)[:512] for text in texts]
    with tempfile.TemporaryDirectory() as made:
        exact, _ = target(copied(folder, Path(made), tensors), prompts)
    rows = []
    print(TITLE)
    for name, own, nextn in formats():
        rounded, errors, bits = all_rounded(cfg, tensors, own, nextn)
        with tempfile.TemporaryDirectory() as made:
            new = copied(folder, Path(made), rounded)
            states, perplexity = target(new, prompts)
            lengths = {n: accept_length(new, texts[: args.drafted], n, args.tokens) for n in (2, 3)}
        hidden = [apart(a, b) for a, b in zip(states, exact, strict=True)]
        whole = errors.pop("all")
        line = f"{name:<44} {bits:>6.2f} {whole:>8.2%} {hidden[0]:>13.2%} {hidden[-1]:>10.2%}"
        print(f"{line} {perplexity:>10.3f} {lengths[2]:>8.3f} {lengths[3]:>8.3f}", flush=True)
        rows.append({
            "format": name, "bits": round(bits, 3), "weights": round(whole, 5),
            "hidden": [round(e, 5) for e in hidden], "perplexity": round(perplexity, 4),
            "accept_length": {str(n): round(length, 4) for n, length in lengths.items()},
            "matrices": {key: round(e, 5) for key, e in errors.items()},
        })  # fmt: skip
    model = Path(args.model_path).name
    result = {"model": model, "prompts": len(prompts), "tokens": sum(map(len, prompts)), "rows": rows,
              "machine": this_machine().line}  # fmt: skip
    tell(f"format-errors-{model}", result, args.output)
    return 0


def read(folder: Path) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The config, and all tensors of the target and its NextN layers in f32."""
    cfg = ModelConfig.from_folder(folder)
    layers = stored_nextn_layers(folder, cfg)
    found: dict[str, Tensor] = {}
    load_checkpoint(
        folder,
        expected_tensors(cfg, layers),
        lambda name, tensor: found.__setitem__(name, tensor.float()),
        quantization=cfg.quantization,
        dtype=torch.float32,
        shared=shared_tensors(cfg, layers),
        skip_prefixes=nextn_prefixes(cfg, layers),
    )
    return cfg, found


def copied(folder: Path, new: Path, tensors: dict[str, Tensor]) -> Path:
    """Writes a copy of a checkpoint with other weights into `new`."""
    for file in folder.glob("*.json"):
        if not file.name.endswith(".index.json"):
            shutil.copy(file, new / file.name)
    save_file(tensors, new / "model.safetensors")
    return new


def all_rounded(
    cfg: ModelConfig, tensors: dict[str, Tensor], own: Round, nextn: Round
) -> tuple[dict[str, Tensor], dict[str, float], float]:
    """Rounds the matrices. Returns (all tensors; relative errors of the target's matrices by layer, by kind
    and for "all"; mean bits per weight of the target's layers)."""
    modules, kv_up = nextn_prefixes(cfg), cfg.names.kv_up
    found, total, values = dict(tensors), 0.0, 0
    sums: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        module = name.startswith(modules)
        if tensor.dim() != 2 or "_proj" not in name or name.endswith(cfg.mtp.projection):
            continue
        way = nextn if module else own
        if name.endswith(kv_up):  # its matrices are read head by head; --quantization's formats do not fit
            way = bf16 if way is int8 else int8 if way.__qualname__.startswith("int4") else way
        found[name], bits = way(tensor)
        if module:
            continue
        total, values = total + bits, values + tensor.numel()
        layer, kind = name.split(".")[2], name.split(".")[-2]
        both = torch.stack(((found[name] - tensor).square().sum(), tensor.square().sum()))
        for key in ("all", f"layer {layer}", kind):
            sums[key] = sums.get(key, torch.zeros(2)) + both
    return found, {key: math.sqrt(a / b) for key, (a, b) in sums.items()}, total / values


@torch.inference_mode()
def target(folder: Path, prompts: list[list[int]]) -> tuple[list[Tensor], float]:
    """Runs the target. Returns (hidden states after each layer over the first prompts, perplexity over all
    prompts)."""
    config = EngineConfig(model_path=str(folder), kernel_backend="reference", speculative_num_steps=0)
    model, _ = make_model(config, CPU, torch.get_num_threads())
    states: list[list[Tensor]] = [[] for _ in model.layers]
    for layer, kept in zip(model.layers, states, strict=True):
        watch(model, layer, kept)
    pages = -(-512 // PAGE)
    pool = KVPool(len(model.layers), pages + 1, PAGE, model.cache_layout, model.dtype, CPU)
    loss, count = 0.0, 0
    for number, prompt in enumerate(prompts):
        hidden = model.forward(model.batch([Span(prompt, 0, list(range(1, pages + 1)))], PAGE), pool)
        scores = model.logits(hidden)[: len(prompt) - 1].log_softmax(-1)
        loss -= float(scores.gather(1, torch.tensor(prompt[1:])[:, None]).double().sum())
        count += len(prompt) - 1
        for kept in states:
            if number < WATCHED:
                kept[-1] = kept[-1][: len(prompt)]
            else:
                kept.pop()
    return [torch.cat(kept) for kept in states], math.exp(loss / count)


def watch(model: object, layer: object, kept: list[Tensor]) -> None:
    """Makes a layer append the residual stream after it to `kept`, its own additions included."""
    forward = layer.forward

    def watched(*args: object) -> object:
        x, added = forward(*args)
        kept.append(model.ops.add_norm(x, added, model.norm, model.config.rms_norm_eps)[0])
        return x, added

    layer.forward = watched


def apart(a: Tensor, b: Tensor) -> float:
    """Root mean square of the difference, relative to the root mean square of b."""
    return float((a - b).square().mean().sqrt() / b.square().mean().sqrt())


def accept_length(folder: Path, texts: list[str], drafts: int, tokens: int) -> float:
    llm = LLM(str(folder), speculative_num_steps=drafts)
    done = llm.generate(texts, SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True))
    return sum(c.spec.committed for c in done) / sum(c.spec.verify_steps for c in done)


if __name__ == "__main__":
    sys.exit(main())
