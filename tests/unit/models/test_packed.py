"""Packed codes read as the matrices that they were made from, in any rows; what does not fit is refused."""

import re

import pytest
import torch
from support.checkpoints import write_checkpoint
from support.packed import awq, awq_config, coded, compressed_tensors, ct_config, gptq, gptq_config

from nextn.families.fields import Fields
from nextn.families.files import CheckpointError
from nextn.families.quantization import quantization
from nextn.models.shards import open_shards
from nextn.ops.stored import INT4, Format, Stored
from nextn.ops.widen import widened

NAME = "model.layers.0.mlp.experts.3.up_proj.weight"


def weight(n=40, k=96, seed=0):
    return torch.randn(n, k, generator=torch.Generator().manual_seed(seed))


def parsed(config):
    return quantization(Fields({"quantization_config": config}, "config.json"))


def reads(folder, config, tensors, want, shards=1):
    """The matrix, whole and by rows, is `want`; returns its TensorInfo."""
    write_checkpoint(folder, {}, {**tensors, "model.norm.weight": torch.ones(8)}, shards)
    with open_shards(folder, parsed(config)) as opened:
        assert set(opened.where) == {NAME, "model.norm.weight"}
        info = opened.info(NAME)
        assert info.shape == want.shape
        for rows in (None, range(len(want)), range(3, 29), range(17, 18)):
            got = opened.where[NAME].read(NAME, rows)
            assert isinstance(got, Stored) == (info.format is not None)
            if isinstance(got, Stored):
                assert got.format == info.format
                got = widened(got, torch.float32)
            assert torch.equal(got, want if rows is None else want[rows.start : rows.stop])
        assert torch.equal(opened.where["model.norm.weight"].read("model.norm.weight"), torch.ones(8))
    return info


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("group", [32, 96, 0])
def test_compressed_tensors(tmp_path, group, zeros):
    c = coded(weight(37), group, zeros)
    info = reads(tmp_path, ct_config(group, zeros), compressed_tensors(NAME, c, zeros), c.weight, shards=3)
    assert info.format == Format(INT4, group or 96, zeros)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("group", [32, 0])
def test_gptq(tmp_path, group, version):
    c = coded(weight(), group)
    assert (c.zero == 0).sum() == 0
    config = gptq_config(group, checkpoint_format="gptq" if version == 1 else "gptq_v2")
    info = reads(tmp_path, config, gptq(NAME, c, version), c.weight)
    assert info.format == Format(INT4, group or 96, zeros=True)


def test_gptq_symmetric(tmp_path):
    c = coded(weight(), 32, zeros=False)
    assert reads(tmp_path, gptq_config(32, sym=True), gptq(NAME, c), c.weight).format == Format(INT4, 32)


def test_gptq_zero_points_that_borrow(tmp_path):
    """Version 1 subtracts from whole words: where a zero point is 0, its neighbour gives."""
    c = coded(weight().abs(), 32)
    assert (c.zero == 0).all()
    reads(tmp_path, gptq_config(32), gptq(NAME, c), c.weight)


def test_awq(tmp_path):
    for group in (32, 0):
        c = coded(weight(), group)
        info = reads(tmp_path / str(group), awq_config(group), awq(NAME, c), c.weight)
        assert info.format == Format(INT4, group or 96, zeros=True)


ORDER = torch.randperm(96, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("why", "options", "config"),
    [
        ("8 bits", {"group": 32, "bits": 8}, gptq_config(32, bits=8)),
        ("8 bits", {"group": 0, "bits": 8, "zeros": False}, ct_config(0, False, 8)),
        ("8 bits", {"group": 32, "bits": 8}, ct_config(32, True, 8)),
        ("inputs out of order (desc_act)", {"group": 32, "order": ORDER}, gptq_config(32, desc_act=True)),
        ("96 inputs in groups of 64", {"group": 64}, gptq_config(64)),
        ("96 inputs in groups of 64", {"group": 64}, ct_config(64)),
    ],
)
def test_widened(tmp_path, why, options, config):
    """What `Stored` has no room for."""
    c = coded(weight(), **options)
    ct = config["quant_method"] == "compressed-tensors"
    tensors = compressed_tensors(NAME, c, options.get("zeros", True)) if ct else gptq(NAME, c)
    info = reads(tmp_path, config, tensors, c.weight)
    assert (info.format, info.dtype, info.widened) == (None, "F32", why)


def test_desc_act_in_order(tmp_path):
    """GPTQModel may say desc_act of groups that are in order after all."""
    c = coded(weight(), 32)
    assert reads(tmp_path, gptq_config(32, desc_act=True), gptq(NAME, c), c.weight).format is not None


def test_settings_by_module(tmp_path):
    """GPTQModel's `dynamic`: this matrix has others than the rest."""
    c = coded(weight(), 32)
    config = gptq_config(
        0, bits=8, dynamic={r"+:.*up_proj": {"bits": 4, "group_size": 32}, r"-:.*lm_head": {}}
    )
    assert reads(tmp_path, config, gptq(NAME, c), c.weight).format == Format(INT4, 32, zeros=True)


def with_part(tensors, end, tensor):
    made = {**tensors, NAME.removesuffix("weight") + end: tensor}
    return {name: t for name, t in made.items() if t is not None}


CT = compressed_tensors(NAME, coded(weight(), 32))
GPTQ = gptq(NAME, coded(weight(), 32))
AWQ = awq(NAME, coded(weight(), 32))


@pytest.mark.parametrize(
    ("config", "tensors", "said"),
    [
        (ct_config(32), with_part(CT, "weight_scale", None), "up_proj.weight_scale is missing"),
        (ct_config(32), with_part(CT, "weight_shape", None), "up_proj.weight_shape is missing"),
        (ct_config(32), with_part(CT, "weight_shape", torch.tensor([40, 88])), "do not fit 88 inputs"),
        (ct_config(32), with_part(CT, "weight_shape", torch.tensor([40, 97])), "weight_shape is [40, 97]"),
        (ct_config(32), with_part(CT, "weight_shape", torch.tensor([41, 96])), "weight_shape is [41, 96]"),
        (ct_config(32), with_part(CT, "weight_shape", torch.tensor([40, -1])), "weight_shape is [40, -1]"),
        (ct_config(32), with_part(CT, "weight_shape", torch.tensor([40, 1 << 60])), f"[40, {1 << 60}]"),
        (ct_config(32), with_part(CT, "weight_shape", torch.ones(2)), "weight_shape is F32 (supported: I64"),
        (ct_config(32), with_part(CT, "weight_shape", torch.ones(3).long()), "weight_shape is [3], its"),
        (ct_config(32), with_part(CT, "weight_scale", torch.ones(40, 2)), "[40, 2] do not fit"),
        (ct_config(32), with_part(CT, "weight_scale", torch.ones(40)), "[40]; it must have two"),
        (ct_config(32), with_part(CT, "weight_scale", torch.ones(40, 3).int()), "is I32 (supported: F16"),
        (ct_config(32), with_part(CT, "weight_packed", torch.ones(40, 12)), "is F32 (supported: I32)"),
        (ct_config(32), with_part(CT, "weight_zero_point", torch.ones(40, 3).int()), "requires [5, 3]"),
        (ct_config(32), with_part(CT, "weight_zero_point", torch.ones(5, 3).char()), "is I8 (supported:"),
        (ct_config(32), with_part(CT, "weight", weight()), "and " + NAME + " are both there; remove one"),
        (ct_config(16), CT, "and quantization_config's 4 bits, groups of 16"),
        (ct_config(0), CT, "and quantization_config's 4 bits, one group"),
        (gptq_config(32), with_part(GPTQ, "scales", None), "up_proj.scales is missing"),
        (gptq_config(32), with_part(GPTQ, "qzeros", None), "up_proj.qzeros is missing"),
        (gptq_config(32), with_part(GPTQ, "qzeros", torch.ones(3, 4).int()), "its matrix requires [3, 5]"),
        (gptq_config(32), with_part(GPTQ, "g_idx", torch.zeros(0).int()), "up_proj.qweight is [12, 40]"),
        (gptq_config(32), with_part(GPTQ, "g_idx", torch.zeros(96)), "g_idx is F32 (supported: I32)"),
        (gptq_config(32), with_part(GPTQ, "g_idx", torch.full((96,), 3).int()), "has group numbers 3 to 3"),
        (gptq_config(32), with_part(GPTQ, "g_idx", torch.full((96,), -1).int()), "group numbers -1 to -1"),
        (gptq_config(32), with_part(GPTQ, "g_idx", torch.zeros(96).int()), "but desc_act is not true"),
        (gptq_config(32, sym=True), GPTQ, "qzeros has zero points other than 8, but sym is true"),
        (gptq_config(32), with_part(GPTQ, "qweight", torch.ones(12).int()), "is [12]; it must have two"),
        (awq_config(32), with_part(AWQ, "qzeros", None), "up_proj.qzeros is missing"),
        (awq_config(32), with_part(AWQ, "qweight", torch.ones(96, 6).int()), "do not fit 96 inputs"),
        (awq_config(32), with_part(AWQ, "qzeros", torch.ones(3, 5)), "qzeros is F32 (supported: I32)"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(tmp_path, config, tensors, said):
    write_checkpoint(tmp_path, {}, tensors)

    def read():
        with open_shards(tmp_path, parsed(config)) as opened:
            opened.where[NAME].read(NAME)

    with pytest.raises(CheckpointError, match=re.escape(said)) as raised:
        read()
    assert str(tmp_path / "model.safetensors") in str(raised.value)


def test_a_part_alone_is_a_tensor_of_its_own(tmp_path):
    """So it is among the unexpected ones when the checkpoint is loaded."""
    write_checkpoint(tmp_path, {}, with_part(CT, "weight_packed", None))
    with open_shards(tmp_path, parsed(ct_config(32))) as opened:
        assert NAME not in opened.where
        assert NAME.removesuffix("weight") + "weight_scale" in opened.where
