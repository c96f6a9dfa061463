"""Reads and checks the architecture of a checkpoint, from its config.json.

    cfg = ModelConfig.from_folder("/models/DeepSeek-V3")

Fields have DeepSeek's names. The file of each family defines which keys they come from, and which values are
refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nextn.families.fields import Fields
from nextn.families.files import checkpoint_folder, read_json
from nextn.families.mtp import MTPSpec
from nextn.families.names import TensorNames
from nextn.families.quantization import Quantization
from nextn.families.registry import architecture, family_of


@dataclass(frozen=True)
class YarnScaling:
    """YaRN (arXiv 2309.00071) with DeepSeek's two mscales. mscale_all_dim 0: the softmax scale is kept."""

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 1.0
    mscale_all_dim: float = 0.0


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3.1's scaling: frequencies of long waves are divided by `factor`, those of short waves are kept,
    and those between are interpolated."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class LinearScaling:
    """Every frequency is divided by `factor`."""

    factor: float


Scaling = YarnScaling | Llama3Scaling | LinearScaling


@dataclass(frozen=True)
class GqaAttention:
    """Grouped-query attention (arXiv 2305.13245): num_attention_heads / num_key_value_heads queries share a
    key and a value.

    rotary_dim: number of rotated elements of a head. During computation they are its last ones
    (`nextn.layers.head_rows`). qk_norm: whether each query and key is normed before the rotation. qkv_bias,
    out_bias: whether the products before and after attention have biases.
    """

    num_key_value_heads: int
    head_dim: int
    rotary_dim: int
    qk_norm: bool
    qkv_bias: bool
    out_bias: bool


@dataclass(frozen=True)
class ModelConfig:
    """An architecture. In a dense-only model n_routed_experts is 0.

    If `gqa` is None, attention is MLA. Otherwise q_lora_rank is None, kv_lora_rank is 0, and v_head_dim is
    the width of a head. Of its elements, qk_rope_head_dim are rotated and qk_nope_head_dim are not.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    moe_intermediate_size: int
    first_k_dense_replace: int
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    n_group: int
    topk_group: int
    norm_topk_prob: bool
    routed_scaling_factor: float
    q_lora_rank: int | None  # None: queries come from one matrix, q_proj
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    max_position_embeddings: int
    rope_theta: float
    rope_scaling: Scaling | None
    rms_norm_eps: float
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    num_nextn_predict_layers: int
    tie_word_embeddings: bool
    quantization: Quantization | None
    softmax_router: bool = False  # True: DeepSeek-V2's scores and groups; False: V3's. See `Ops.route`
    gqa: GqaAttention | None = None
    cut_layers: int = 0  # number of the checkpoint's last target layers that are not computed

    @classmethod
    def from_folder(cls, path: str | Path) -> ModelConfig:
        """Reads config.json, and the end tokens of generation_config.json if that exists.

        Raises CheckpointError (a ValueError) for a missing or broken file, ValueError for a wrong value.
        """
        folder = checkpoint_folder(path)
        file = folder / "config.json"
        generation = folder / "generation_config.json"
        more = Fields(read_json(generation), str(generation)) if generation.exists() else None
        return _parse(Fields(read_json(file), str(file)), more)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], source: str = "config.json") -> ModelConfig:
        """The config from a parsed config.json. Raises ValueError; it names `source`, key, value and fix."""
        return _parse(Fields(data, source), None)

    @property
    def qk_head_dim(self) -> int:
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def latent_dim(self) -> int:
        """MLA: width of a token's entry in the KV pool, which is the latent and the shared key."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def cache_width(self) -> int:
        """Elements of one token's entry in the KV pool, per layer."""
        return self.latent_dim if self.gqa is None else 2 * self.gqa.num_key_value_heads * self.gqa.head_dim

    @property
    def num_key_value_heads(self) -> int:
        return self.num_attention_heads if self.gqa is None else self.gqa.num_key_value_heads

    @property
    def first_module(self) -> int:
        """Number of the first NextN module in the names of a whole checkpoint's tensors."""
        return self.num_hidden_layers + self.cut_layers if self.mtp.counted_on else 0

    def module_at(self, k: int) -> str:
        """Prefix of NextN module k in a whole checkpoint."""
        return self.mtp.at(self.first_module + k)

    def cut(self, layers: int) -> ModelConfig:
        """The model with only the first `layers` layers. It has the NextN modules of the whole model."""
        dense = min(self.first_k_dense_replace, layers)
        cut = self.cut_layers + self.num_hidden_layers - layers
        return replace(self, num_hidden_layers=layers, first_k_dense_replace=dense, cut_layers=cut)

    def is_moe(self, layer: int) -> bool:
        """Whether a layer has experts. NextN layers are num_hidden_layers, num_hidden_layers + 1, …"""
        if layer >= self.num_hidden_layers and self.mtp.dense:
            return False
        return self.n_routed_experts > 0 and layer >= self.first_k_dense_replace

    @property
    def names(self) -> TensorNames:
        """The names of tensors in the family's checkpoints."""
        names: TensorNames = family_of(self.architecture).NAMES
        return names

    @property
    def mtp(self) -> MTPSpec:
        """The structure and names of the family's NextN modules."""
        spec: MTPSpec = family_of(self.architecture).MTP
        return spec


def _parse(f: Fields, generation: Fields | None) -> ModelConfig:
    name = architecture(f.data, f.source)
    cfg: ModelConfig = family_of(name).parse(name, f, generation)
    return cfg
