"""The C interface of the native kernels (csrc/) for ctypes: numbers, structures, functions."""

from __future__ import annotations

import sys
from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_uint64,
    c_void_p,
)  # fmt: skip
from struct import Struct

INTERFACE = 28  # value of nx_interface in a library that fits this file
F32, BF16, E4M3, INT8 = range(4)
INT4, INT4Z, Q4_0, Q8_0, Q4_K, Q5_K, Q6_K, Q4_1, Q5_0, Q5_1 = range(4, 14)  # few-bit codes (csrc/coded.h)
KINDS = {  # their names
    F32: "f32", BF16: "bf16", E4M3: "e4m3", INT8: "int8", INT4: "int4", INT4Z: "int4 with zeros",
    Q4_0: "Q4_0", Q8_0: "Q8_0", Q4_K: "Q4_K", Q5_K: "Q5_K", Q6_K: "Q6_K",
    Q4_1: "Q4_1", Q5_0: "Q5_0", Q5_1: "Q5_1",
}  # fmt: skip
# NxWeight.way: how rows are multiplied with a weight.
WAYS = (
    "the level's default",
    "AMX tiles",
    "dot products of bf16 pairs",
    "f32 multiply-adds",
    "dot products of bytes",
)
BY_BYTES = WAYS.index("dot products of bytes")
PANEL = 64  # outputs of a whole panel (csrc/panels.h)
# NxSampling of csrc/choose.h, with its fields in the order of nextn.ops.base.DrawParams.
SAMPLING = Struct("@QIIfffii4x")
CUTOFF = Struct("@8f9f4f")  # NxCutoff of csrc/cutoff.h: the edges and the fields of nextn.cutoff.Cutoff


class Weight(Structure):
    """NxWeight of csrc/panels.h."""

    _fields_ = (
        ("data", c_void_p), ("scales", c_void_p), ("n_out", c_int32), ("n_in", c_int32), ("kind", c_int32),
        ("block", c_int32), ("stride", c_int64), ("scale_stride", c_int64), ("way", c_int32),
        ("non_temporal", c_int32),
    )  # fmt: skip


class Heads(Structure):
    """NxHeads of csrc/latent.h."""

    _fields_ = (
        ("groups", c_int32), ("heads", c_int32), ("first", c_int32), ("repeat", c_int32), ("stride", c_int32),
        ("value", c_int32), ("key_at", c_int32), ("key", c_int32), ("columns", c_int32),
    )  # fmt: skip


class FeedForward(Structure):
    """NxFeedForward of csrc/moe.h."""

    _fields_ = (
        ("router", Weight), ("bias", c_void_p), ("gate_up", Weight), ("down", Weight),
        ("shared_gate_up", Weight), ("shared_down", Weight), ("experts", c_int32), ("groups", c_int32),
        ("top_groups", c_int32), ("top_k", c_int32), ("normalize", c_int32), ("softmax", c_int32),
        ("fp8_rows", c_int32), ("scale", c_float), ("own", c_int32), ("most_replicas", c_int32),
        ("replicas", c_void_p), ("replica_count", c_void_p), ("counts", c_void_p),
    )  # fmt: skip


class Layer(Structure):
    """NxLayer of csrc/model.h."""

    _fields_ = (
        ("attention_norm", c_void_p), ("down", Weight), ("q_norm", c_void_p), ("q_up", Weight),
        ("kv_norm", c_void_p), ("key_up", Weight), ("value_up", Weight), ("bias", c_void_p), ("out", Weight),
        ("out_bias", c_void_p),
        ("mlp_norm", c_void_p), ("mlp", FeedForward),
    )  # fmt: skip


class NextN(Structure):
    """NxNextN of csrc/model.h."""

    _fields_ = (("enorm", c_void_p), ("hnorm", c_void_p), ("norm", c_void_p), ("eh_proj", Weight))


class Ranks(Structure):
    """NxRanks of csrc/ranks.h."""

    _fields_ = (
        ("rank", c_int32), ("size", c_int32), ("memory", c_void_p), ("sockets", c_void_p),
        ("most_rows", c_int32), ("spins", c_int32), ("waited", c_int64),
    )  # fmt: skip


class World(Structure):
    """NxWorld of csrc/world.h."""

    _fields_ = (
        ("rank", c_int32), ("size", c_int32), ("groups", c_int32), ("shards", c_int32),
        ("most_rows", c_int32), ("spins", c_int32), ("memory", c_void_p), ("sockets", c_void_p),
        ("dynamic", c_int32), ("epoch", c_int32), ("two", c_int32), ("rows", c_int32 * 64 * 2),
        ("waited", c_int64 * 4), ("sent", c_int64), ("link", c_double), ("link_free", c_int64),
        ("all_sent", c_int64),
    )  # fmt: skip


class Model(Structure):
    """NxModel of csrc/model.h."""

    _fields_ = (
        ("hidden", c_int32), ("heads", c_int32), ("nope", c_int32), ("rope", c_int32), ("rank", c_int32),
        ("value", c_int32), ("q_in", c_int32), ("kv_heads", c_int32), ("first_head", c_int32),
        ("all_heads", c_int32),
        ("vocab", c_int32), ("layers", c_int32), ("eps", c_float),
        ("latent_eps", c_float), ("scale", c_float), ("embedding", c_void_p), ("cosine", c_void_p),
        ("sine", c_void_p), ("layer", POINTER(Layer)), ("norm", c_void_p), ("head", Weight),
        ("nextn", POINTER(NextN)), ("masks_first", c_int32), ("draft_head", Weight),
        ("draft_ids", c_void_p), ("draft_vocab", c_int32), ("cache", c_void_p),
        ("layer_elements", c_int64), ("width", c_int32), ("page", c_int32), ("ranks", POINTER(Ranks)),
        ("world", POINTER(World)),
    )  # fmt: skip


class NxBatch(Structure):
    """NxBatch of csrc/model.h; `nextn.layers.batch` has an example."""

    _fields_ = (
        ("rows", c_int32), ("spans", c_int32), ("tokens", c_void_p), ("starts", c_void_p),
        ("page_at", c_void_p), ("cu_rows", c_void_p), ("cu_paths", c_void_p), ("table", c_void_p),
    )  # fmt: skip


class NxChains(Structure):
    """NxChains of csrc/guesses.h."""

    _fields_ = (
        ("rows", c_void_p), ("span", c_void_p), ("sampling", c_char_p), ("num_steps", c_void_p),
        ("count", c_int32), ("max_steps", c_int32), ("vocab", c_int32), ("scores", c_void_p),
        ("cutoff", c_char_p), ("cut", c_char_p), ("tokens", c_void_p), ("bins", c_void_p), ("made", c_void_p),
        ("kept", c_void_p), ("passes", c_void_p),
    )  # fmt: skip


# NxRequest and NxStep of csrc/step.h.
REQUEST = Struct("@QIIfffii4xPii")
STEP = Struct("@ii5Pii4P")

_RUNS = c_void_p, c_int, c_int64, c_int64, c_void_p, c_int  # the pool, and Runs of csrc/pages.h

SIGNATURES: dict[str, tuple[object, tuple[object, ...]]] = {
    "nx_machine_level": (c_int, ()),
    "nx_interface": (c_int, ()),
    "nx_advise": (None, (c_void_p, c_int64)),
    "nx_pack": (
        None,
        (c_void_p, c_int, c_int, c_int64, c_int, c_void_p, c_int, c_int, c_int, c_int, c_int),
    ),
    "nx_pack_blocks": (None, (c_void_p, c_int, c_void_p, c_int, c_int, c_int, c_int, c_int)),
    "nx_pack_codes": (
        None,
        (c_void_p, c_void_p, c_void_p, c_int, c_void_p, c_int, c_int, c_int, c_int, c_int, c_int),
    ),
    "nx_ways": (c_int, (c_int,)),
    "nx_output_bytes": (c_int64, (c_int, c_int, c_int)),
    "nx_pool_new": (c_void_p, (c_int,)),
    "nx_pool_free": (None, (c_void_p,)),
    "nx_read": (c_uint64, (c_void_p, c_void_p, c_int64)),
    "nx_read_pages": (None, (*_RUNS, c_void_p, c_void_p)),
    "nx_write_pages": (None, (*_RUNS, c_void_p, c_void_p)),
    "nx_peak": (c_int64, (c_void_p, c_int, c_int)),
    "nx_linear": (None, (c_void_p, c_void_p, c_int, POINTER(Weight), c_void_p)),
    "nx_attention": (
        None,
        (c_void_p, POINTER(NxBatch), c_void_p, c_int, c_int, POINTER(Heads), c_void_p, c_void_p),
    ),
    "nx_feed_forward": (
        None,
        (c_void_p, POINTER(FeedForward), c_void_p, c_void_p, c_int, c_int64, c_void_p, c_void_p, c_void_p),
    ),
    "nx_route": (
        None,
        (c_void_p, POINTER(FeedForward), c_void_p, c_int, c_int64, c_void_p, c_void_p),
    ),
    "nx_experts": (
        None,
        (c_void_p, POINTER(FeedForward), c_void_p, c_void_p, c_int, c_int64, c_void_p),
    ),
    "nx_combine": (None, (c_void_p, c_void_p, c_int, c_void_p, c_int, c_int64, c_void_p)),
    "nx_fp8_row_bytes": (c_int64, (c_int64,)),
    "nx_fp8_encode": (None, (c_void_p, c_int, c_int64, c_void_p)),
    "nx_fp8_decode": (None, (c_void_p, c_int, c_int64, c_void_p)),
    "nx_norm": (None, (c_void_p, c_void_p, c_int, c_int, c_int64, c_float, c_void_p)),
    "nx_engine_new": (c_void_p, (POINTER(Model), c_int, c_int)),
    "nx_engine_free": (None, (c_void_p,)),
    "nx_engine_expert_bytes": (c_int64, (c_void_p,)),
    "nx_forward": (c_int, (c_void_p, POINTER(NxBatch), c_void_p)),
    "nx_draft": (c_int, (c_void_p, POINTER(NxBatch), c_void_p, c_int, c_void_p)),
    "nx_logits": (c_int, (c_void_p, c_void_p, c_int, c_int, c_void_p)),
    "nx_draft_logits": (c_int, (c_void_p, c_void_p, c_int, c_int, c_void_p)),
    "nx_choices": (c_int, (c_void_p, c_void_p, c_int, c_int, c_int, c_void_p, c_char_p, c_void_p)),
    "nx_chains": (c_int, (c_void_p, POINTER(NxBatch), c_void_p, c_int, POINTER(NxChains))),
    "nx_step": (c_int, (c_void_p, c_char_p, c_char_p, c_void_p)),
    "nx_shared_bytes": (c_int64, (POINTER(Model), c_int, c_int)),
    "nx_world_bytes": (c_int64, (POINTER(Model), c_int)),
    "nx_world_step": (c_int, (POINTER(World), c_int, c_int, c_int)),
    "nx_gather": (c_int, (POINTER(Ranks), c_void_p, c_int64, c_int64, c_void_p)),
    "nx_swap": (c_int, (POINTER(Ranks), c_void_p, c_void_p, c_void_p, c_void_p)),
    "nx_meet": (c_int, (c_void_p, c_int, c_int)),
    "nx_break": (None, (c_void_p,)),
    "nx_choose": (None, (c_void_p, c_int, c_int, c_void_p, c_void_p, c_void_p)),
}
if sys.platform != "win32":  # csrc/page_sockets.h
    SIGNATURES |= {
        "nx_send_pages": (None, (*_RUNS, c_int, c_void_p, c_int64, c_void_p)),
        "nx_receive_pages": (
            c_int64,
            (*_RUNS, c_int, c_int64, c_void_p, c_int64, c_void_p, c_void_p),
        ),
        "nx_place_pages": (None, (*_RUNS, c_void_p, c_int64, c_void_p, c_void_p)),
    }
