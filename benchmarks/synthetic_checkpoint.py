"""Writes a DeepSeek-V3 checkpoint of any size without training, whose drafts are accepted at a chosen rate.

    python benchmarks/synthetic_checkpoint.py --output DIR                    # --size 1b, --acceptance 0.9
    python benchmarks/synthetic_checkpoint.py --output DIR --size 69m --num-hidden-layers 4

Greedy text follows a fixed permutation of the vocabulary, and the NextN layer's drafts are right at the rate
--acceptance (see synthetic/walk.py). Every engine does the full work of a model of this size and accepts
drafts at a known rate. The folder has DeepSeek's format: config.json, bf16 safetensors in shards with an
index, tokenizer. It is written tensor by tensor, under another name until it is complete. The last line is
JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import sys
from pathlib import Path

import torch
from synthetic.sizes import PRESETS, Dimensions, bytes_per_token, checkpoint_tensors, parameters
from synthetic.vocabulary import embedded_folder, tokenizer_json
from synthetic.walk import Walk

from nextn.bench.console import styled
from nextn.bench.progress import Progress
from nextn.models.new_folder import new_folder
from nextn.models.shard_writer import TensorSpec, write_shards


def write_checkpoint(
    output: Path, size: Dimensions, acceptance: float, seed: int = 0, shard_bytes: int = 500_000_000,
    bar: bool = False,
) -> dict[str, int | float | str]:  # fmt: skip
    """Writes the folder `output` and returns its sizes. The folder appears only when it is complete.

    Raises ValueError if the output exists, and for dimensions that do not fit together.
    """
    cfg = size.check()
    vocabulary, special = tokenizer_json(size.vocab_size)
    walk = Walk(cfg, special, acceptance, seed)
    specs = {name: TensorSpec(s, file_dtype(name)) for name, s in checkpoint_tensors(cfg).items()}
    with new_folder(output) as folder:
        total = sum(spec.bytes for spec in specs.values())
        with Progress(total, bar, "B") as progress:
            written = write_shards(
                folder,
                specs,
                lambda name: walk.tensor(name, specs[name].shape),
                shard_bytes,
                progress.advance,
            )
        _write_json(folder / "config.json", size.config_json())
        _write_json(folder / "generation_config.json", {"bos_token_id": 0, "eos_token_id": 1})
        _write_json(folder / "tokenizer.json", vocabulary)
        shutil.copyfile(embedded_folder() / "tokenizer_config.json", folder / "tokenizer_config.json")
    return {
        "output": str(output),
        "parameters": parameters(cfg),
        "bytes_per_token": bytes_per_token(cfg),
        "bytes": written,
        "acceptance": acceptance,
        "seed": seed,
    }


def file_dtype(name: str) -> torch.dtype:
    """The dtype of a tensor in the file: bf16, or f32 for the routers' correction biases."""
    return torch.float32 if name.endswith("e_score_correction_bias") else torch.bfloat16


def _write_json(file: Path, content: object) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, help="folder to write; it must not exist")
    parser.add_argument("--size", choices=sorted(PRESETS), default="1b", help="default: 1b")
    parser.add_argument(
        "--acceptance", type=float, default=0.9, help="probability that a draft is right, per depth"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shard-mb", type=int, default=500, help="largest shard, in MB")
    dimensions = parser.add_argument_group("dimensions", "in place of the size's own")
    for field in dataclasses.fields(Dimensions):
        dimensions.add_argument(f"--{field.name.replace('_', '-')}", type=int, metavar="N")
    args = parser.parse_args(argv)
    names = [field.name for field in dataclasses.fields(Dimensions)]
    changes = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    try:
        done = write_checkpoint(
            args.output, dataclasses.replace(PRESETS[args.size], **changes), args.acceptance, args.seed,
            args.shard_mb * 1_000_000, bar=styled(sys.stderr),
        )  # fmt: skip
    except ValueError as e:
        parser.error(str(e))
    print(json.dumps(done))
    return 0


if __name__ == "__main__":
    sys.exit(main())
