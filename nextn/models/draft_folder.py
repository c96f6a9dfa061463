"""Loads NextN layers from a folder other than the target's: --speculative-draft-model-path.

    draft = DraftFolder.open("/models/DeepSeek-V3-NextN", cfg)
    draft.load(cfg, 1, place, torch.float32)

Three ways to name the tensors of module k are read. For a DeepSeek-V3 target with N layers:

    whole checkpoint             model.layers.{N+k}.X
    nextn export-mtp, SGLang     model.layers.{k}.X
    xLLM, one module             model.X for the module's own tensors, model.layers.0.X for its decoder layer

Embedding and head are the target's. If the folder has copies of them, only their shapes are checked. The
values of num_hidden_layers and first_k_dense_replace in the folder's config.json are ignored: every exporter
writes something else there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from nextn.families.config import ModelConfig
from nextn.families.files import CheckpointError, checkpoint_folder, first_names, read_json
from nextn.families.mtp import MTPSpec
from nextn.families.names import numbered
from nextn.families.quantization import Fp8Blocks, Quantization
from nextn.families.registry import architecture
from nextn.models.loader import LoadReport, load_checkpoint, stored_formats
from nextn.models.names import nextn_tensors, shared_tensors, target_prefixes
from nextn.models.shards import open_shards
from nextn.ops.stored import Format

OPTION = "--speculative-draft-model-path"
CHECKED_FIELDS = (  # fields that the module computes with; their values are taken from the target's config
    "hidden_size", "vocab_size", "num_attention_heads", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim",
    "qk_rope_head_dim", "v_head_dim", "n_routed_experts", "n_shared_experts", "moe_intermediate_size",
    "num_experts_per_tok", "n_group", "topk_group", "norm_topk_prob", "routed_scaling_factor",
    "softmax_router", "rope_theta", "rope_scaling", "rms_norm_eps", "gqa",
)  # fmt: skip


@dataclass(frozen=True)
class DraftFolder:
    """A folder with NextN layers. first: number of the first NextN layer in the folder's names, None in
    xLLM's layout. layers: number of NextN layers in the folder."""

    folder: Path
    spec: MTPSpec
    first_module: int
    first: int | None
    layers: int
    quantization: Quantization | None

    @classmethod
    def open(cls, path: str | Path, target: ModelConfig) -> DraftFolder:
        """Reads names and config.json. Raises CheckpointError or ValueError if the folder does not fit the
        target. The error names the folder, and the key and both values of every difference."""
        folder = checkpoint_folder(path, OPTION)
        cfg = _config(folder / "config.json", target)
        with open_shards(folder, cfg.quantization) as shards:
            first, layers = _found(folder, shards.where, target)
        return cls(folder, target.mtp, target.first_module, first, layers, cfg.quantization)

    def stored_name(self, name: str) -> str:
        """The folder's name for a tensor of the target's NextN modules. For a target with 61 layers and a
        folder of nextn export-mtp: model.layers.61.enorm.weight -> model.layers.0.enorm.weight."""
        number, rest = self.spec.parts(name)
        module = number - self.first_module
        assert 0 <= module < self.layers, name
        if self.first is not None:
            return self.spec.at(self.first + module) + rest
        return (self.spec.own_prefix if rest in self.spec.own else self.spec.at(0)) + rest

    def stored_formats(self, target: ModelConfig, layers: int) -> dict[str, Format]:
        """Target's name -> format, for the matrices of the first `layers` modules that the folder stores in a
        few bits, or in e4m3 blocks of the target's size. Other matrices are dequantized during loading."""
        other_blocks = isinstance(self.quantization, Fp8Blocks) and self.quantization != target.quantization
        stored = stored_formats(self.folder, None if other_blocks else self.quantization)
        names = {name: self.stored_name(name) for name in nextn_tensors(target, layers)}
        return {name: stored[own] for name, own in names.items() if own in stored}

    def load(
        self,
        target: ModelConfig,
        layers: int,
        place: Callable[..., object],
        dtype: torch.dtype,
        as_stored: Collection[str] = (),
        allow_non_finite: bool = False,
        rows: Mapping[str, range] | None = None,
    ) -> LoadReport:
        """`load_checkpoint` for the first `layers` modules, under the target's names."""
        wanted = {self.stored_name(n): (n, shape) for n, shape in nextn_tensors(target, layers).items()}
        table = (target.vocab_size, target.hidden_size)
        shared = {target.names.embedding: table, target.names.head: table}
        for name in shared_tensors(target, layers).keys() - shared.keys():
            shared[self.stored_name(name)] = table
        return load_checkpoint(
            self.folder,
            {stored: shape for stored, (_, shape) in wanted.items()},
            lambda stored, *tensors: place(wanted[stored][0], *tensors),
            quantization=self.quantization,
            dtype=dtype,
            shared=shared,
            skip_prefixes=self._skipped(target, layers),
            as_stored=[stored for stored, (name, _) in wanted.items() if name in as_stored],
            allow_non_finite=allow_non_finite,
            rows={stored: rows[name] for stored, (name, _) in wanted.items() if rows and name in rows},
        )

    def _skipped(self, target: ModelConfig, layers: int) -> tuple[str, ...]:
        """Prefixes of the tensors to skip: unused modules, and in a whole checkpoint the target's layers."""
        if self.first is None:
            return ()
        unused = (self.spec.at(self.first + k) for k in range(layers, self.layers))
        whole = self.first or not self.spec.counted_on  # otherwise the module has the name of target layer 0
        return (*unused, *(target_prefixes(target) if whole else ()))


def _config(file: Path, target: ModelConfig) -> ModelConfig:
    """The folder's config.json, read with the target's architecture and numbers of layers. Raises
    CheckpointError if a field in CHECKED_FIELDS differs from the target's."""
    data = read_json(file)
    named = data.get("architectures")
    if isinstance(named, list) and any(name in target.mtp.exported for name in named):
        data["architectures"] = [target.architecture]
    found = architecture(data, str(file))
    if found != target.architecture:
        raise CheckpointError(
            f"{file}: its architecture is {found!r}, the target's is {target.architecture!r}"
        )
    data["num_hidden_layers"] = target.num_hidden_layers + target.cut_layers
    data["first_k_dense_replace"] = target.first_k_dense_replace
    if not data.get("quantization_config"):  # xLLM writes ""
        data.pop("quantization_config", None)
    cfg = ModelConfig.from_dict(data, str(file))
    is_moe = target.is_moe(target.num_hidden_layers)
    keys = CHECKED_FIELDS if is_moe else (*CHECKED_FIELDS, "intermediate_size")
    apart = [
        f"{key} is {getattr(cfg, key)!r}, the target's is {getattr(target, key)!r}"
        for key in keys
        if getattr(cfg, key) != getattr(target, key)
    ]
    if apart:
        raise CheckpointError(f"{file}: the NextN layer does not fit the target: {'; '.join(apart)}")
    return cfg


def _found(folder: Path, names: Collection[str], target: ModelConfig) -> tuple[int | None, int]:
    """(number of the first layer, number of layers) of the folder's NextN modules; the first is None in
    xLLM's layout. Raises CheckpointError if there is none, or if it is not of a model like the target."""
    spec = target.mtp
    inputs = (spec.embedding_norm, spec.hidden_norm, spec.projection)  # only modules have such tensors
    matches = [m for end in inputs for m in map(numbered(spec.prefix + end).fullmatch, names) if m]
    numbers = sorted({int(m[1]) for m in matches})
    alone = any(spec.own_prefix + end in names for end in inputs)
    if not numbers and not alone:
        raise CheckpointError(
            f"{folder} has no NextN layer; its tensors are {first_names(sorted(names))}. {OPTION} must name "
            "a folder written by nextn export-mtp, or a checkpoint with such a layer"
        )
    if not numbers:
        return None, 1
    first = numbers[0]
    if first not in (0, target.first_module):
        raise CheckpointError(
            f"{folder}: its NextN layer is layer {first}, of a model with num_hidden_layers {first}; the "
            f"target's num_hidden_layers is {target.num_hidden_layers}"
        )
    count = 0
    while first + count in numbers:
        count += 1
    return first, count
