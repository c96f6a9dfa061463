"""A GGUF file's header: what is read of a sound one, and that no other does harm."""

import struct
import tracemalloc

import gguf
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.gguf_files import (
    ARRAY,
    BOOL,
    F32,
    F32_TENSOR,
    Q8_0_TENSOR,
    STRING,
    U32,
    U64,
    gguf_bytes,
    string,
    tensor,
    value,
)

from nextn.checkpoint_error import CheckpointError
from nextn.gguf import header
from nextn.gguf.header import read_header
from nextn.gguf.types import TYPES

SOUND = gguf_bytes(
    {
        "general.architecture": value(STRING, "deepseek2"),
        "a": value(U32, 7),
        "b": value(ARRAY, (STRING, ["", "ä", "x" * 40])),
        "c": value(ARRAY, (F32, [1.0, 2.5])),
        "d": value(BOOL, 1),
    },
    [tensor("one", [8, 2], F32_TENSOR, 0), tensor("two", [32, 3], Q8_0_TENSOR, 64)],
    bytes(64 + 102),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Of a file that is written again and again."""
    return tmp_path_factory.mktemp("header")


def read(tmp_path, data):
    file = tmp_path / "x.gguf"
    file.write_bytes(data)
    return read_header(file)


def why_not(folder, data):
    """What the refusal says; None if it is read."""
    try:
        read(folder, data)
    except CheckpointError as e:
        return str(e)
    return None


def refused(tmp_path, data, *parts):
    with pytest.raises(CheckpointError) as e:
        read(tmp_path, data)
    message = str(e.value)
    assert message.startswith(str(tmp_path / "x.gguf")), message
    for part in parts:
        assert part in message


@pytest.mark.parametrize("version", [2, 3])
def test_a_sound_file(tmp_path, version):
    found = read(tmp_path, SOUND.replace(struct.pack("<I", 3), struct.pack("<I", version), 1))
    assert found.version == version
    assert found.values == {
        "general.architecture": "deepseek2", "a": 7, "b": ["", "ä", "x" * 40], "c": [1.0, 2.5], "d": True,
    }  # fmt: skip
    one, two = found.tensors.values()
    assert (one.name, one.type.name, one.shape, one.end - one.start) == ("one", "F32", (2, 8), 64)
    assert (two.name, two.type.name, two.shape, two.end) == ("two", "Q8_0", (3, 32), len(SOUND))


def test_what_the_gguf_package_writes(tmp_path):
    """All types of values, and an alignment of its own."""
    file = tmp_path / "x.gguf"
    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_custom_alignment(128)
    numbers = {"uint8": 200, "int8": -3, "uint16": 60000, "int16": -300, "uint32": 4_000_000_000}
    numbers |= {
        "int32": -5,
        "uint64": 2**63,
        "int64": -(2**40),
        "float32": 0.5,
        "float64": 0.1,
        "bool": False,
    }
    for kind, number in numbers.items():
        getattr(writer, f"add_{kind}")(kind, number)
    writer.add_array("words", ["a", "bc"])
    weight = np.arange(64, dtype=np.float32).reshape(2, 32)
    writer.add_tensor("v", weight[0])
    writer.add_tensor("w", gguf.quants.quantize(weight, gguf.GGMLQuantizationType.Q4_0), raw_dtype=2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = read_header(file)
    assert {k: found.values[k] for k in numbers} == numbers
    assert found.values["words"] == ["a", "bc"]
    assert found.tensors["w"].start % 128 == 0
    data = file.read_bytes()[found.tensors["v"].start : found.tensors["v"].end]
    assert np.frombuffer(data, np.float32).tolist() == weight[0].tolist()


def test_types_are_those_of_the_gguf_package():
    theirs = {int(kind): (kind.name, *size) for kind, size in gguf.GGML_QUANT_SIZES.items()}
    assert {number: tuple(kind) for number, kind in TYPES.items()} == theirs


def test_cut_at_every_byte(tmp_path):
    for size in range(len(SOUND)):
        refused(tmp_path, SOUND[:size], "" if size < 4 else "cut short" if size < 24 else "")


@settings(max_examples=120)
@given(st.lists(st.tuples(st.integers(0, len(SOUND) - 1), st.integers(0, 255)), min_size=1, max_size=4))
@example([(24, 255), (31, 255)])
def test_other_bytes_anywhere(folder, changes):
    """It is read, or refused by name."""
    data = bytearray(SOUND)
    for at, byte in changes:
        data[at] = byte
    said = why_not(folder, bytes(data))
    assert said is None or str(folder / "x.gguf") in said


@settings(max_examples=80)
@given(st.binary(max_size=300))
def test_any_bytes_behind_a_sound_beginning(folder, rest):
    for start in (b"", b"GGUF" + struct.pack("<I", 3), SOUND[:24], SOUND[:70]):
        said = why_not(folder, start + rest)
        assert said is None or str(folder / "x.gguf") in said


ARCH = ("general.architecture", value(STRING, "llama"))
HUGE = 1 << 62
FAULTS = {
    "no GGUF": (b"PK\3\4" + bytes(60), "is not a GGUF file"),
    "empty": (b"", "is not a GGUF file"),
    "a pointer": (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "version 1": (gguf_bytes(version=1), "version 1"),
    "version 4": (gguf_bytes(version=4), "version 4"),
    "many keys": (gguf_bytes(counts=(0, HUGE)), f"claims {HUGE} keys"),
    "many tensors": (gguf_bytes(counts=(HUGE, 0)), f"claims {HUGE} tensors"),
    "a long name": (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, HUGE) + bytes(99), "string claims"),
    "a long string": (gguf_bytes([("k", struct.pack("<IQ", STRING, HUGE))]) + bytes(99), "key 'k'"),
    "a long array": (gguf_bytes([("k", struct.pack("<IIQ", ARRAY, U64, HUGE))]) + bytes(99), "key 'k'"),
    "many strings": (gguf_bytes([("k", struct.pack("<IIQ", ARRAY, STRING, HUGE))]), "claims"),
    "a long string in an array": (
        gguf_bytes([("k", struct.pack("<IIQQ", ARRAY, STRING, 1, HUGE))]) + bytes(9), "key 'k'",
    ),
    "arrays of arrays": (
        gguf_bytes([("k", struct.pack("<IIQ", ARRAY, ARRAY, 1))]) + bytes(99), "array of arrays",
    ),
    "no such type": (gguf_bytes([("k", struct.pack("<I", 13))]) + bytes(9), "key 'k' is of type 13"),
    "no such type in an array": (
        gguf_bytes([("k", struct.pack("<IIQ", ARRAY, 77, 1))]) + bytes(9), "type 77",
    ),
    "no bool": (gguf_bytes([("k", struct.pack("<IB", BOOL, 2))]), "a bool must be 0 or 1"),
    "no UTF-8": (gguf_bytes([("k", struct.pack("<I", STRING) + string(b"\xff"))]), "not UTF-8"),
    "no UTF-8 in an array": (
        gguf_bytes([("k", struct.pack("<IIQ", ARRAY, STRING, 1) + string(b"\xff"))]), "not UTF-8",
    ),
    "a name that is no UTF-8": (
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + string(b"\xff") + value(U32, 1), "not UTF-8",
    ),
    "a key twice": (gguf_bytes([ARCH, ARCH]), "occurs twice"),
    "a tensor twice": (
        gguf_bytes([], [tensor("t", [8], 0, 0), tensor("t", [8], 0, 32)], bytes(64)), "'t' occurs twice",
    ),
    "no dimensions": (gguf_bytes([], [tensor("t", [], 0, 0)], bytes(64)), "0 dimensions"),
    "five dimensions": (gguf_bytes([], [tensor("t", [1] * 5, 0, 0)], bytes(64)), "5 dimensions"),
    "an empty dimension": (gguf_bytes([], [tensor("t", [8, 0], 0, 0)], bytes(64)), "out of range"),
    "a huge dimension": (gguf_bytes([], [tensor("t", [8, HUGE], 0, 0)], bytes(64)), "out of range"),
    "a huge product": (gguf_bytes([], [tensor("t", [1 << 39] * 4, 0, 0)], bytes(64)), "cut short in tensor"),
    "no such tensor type": (gguf_bytes([], [tensor("t", [8], 99, 0)], bytes(64)), "of the unknown type 99"),
    "part of a block": (gguf_bytes([], [tensor("t", [33], 8, 0)], bytes(99)), "multiple of Q8_0's"),
    "an odd offset": (gguf_bytes([], [tensor("t", [8], 0, 4)], bytes(64)), "not a multiple of 32"),
    "a huge offset": (gguf_bytes([], [tensor("t", [8], 0, HUGE)], bytes(64)), "cut short in tensor 't'"),
    "tensors that overlap": (
        gguf_bytes([], [tensor("t", [16], 0, 0), tensor("u", [8], 0, 32)], bytes(64)),
        "tensor 'u' overlaps with tensor 't'",
    ),
    **{
        f"alignment {n}": (gguf_bytes({"general.alignment": value(U32, n)}), "power of two")
        for n in (0, 24, 1 << 30)
    },
    "an alignment of text": (gguf_bytes({"general.alignment": value(STRING, "32")}), "power of two"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_faults_by_name(tmp_path, name):
    data, said = FAULTS[name]
    refused(tmp_path, data, said)


def test_a_header_larger_than_any(tmp_path, monkeypatch):
    """No more is read, whatever the file's size."""
    monkeypatch.setattr(header, "LARGEST", 200)
    refused(tmp_path, gguf_bytes({"k": value(STRING, "x" * 190)}), "more than 200 bytes, in key 'k'")
    refused(tmp_path, gguf_bytes({"k": value(ARRAY, (STRING, ["word"] * 40))}), "header has at most 200")


def test_what_is_claimed_takes_no_memory(tmp_path):
    """Of counts and lengths that the file does not hold, nothing is made."""
    tracemalloc.start()
    for name, (data, said) in FAULTS.items():
        if "many" in name or "long" in name or "huge" in name:
            refused(tmp_path, data, said)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 5_000_000


def test_a_vocabulary_over_several_reads(tmp_path, monkeypatch):
    """What is read in pieces is read as a whole."""
    monkeypatch.setattr(header, "BEGINNING", 64)
    words = [f"word {i}" for i in range(500)]
    found = read(tmp_path, gguf_bytes({"w": value(ARRAY, (STRING, words)), "n": value(U32, 5)}))
    assert found.values == {"w": words, "n": 5}


def test_no_such_file(tmp_path):
    with pytest.raises(CheckpointError, match="cannot be read: No such file"):
        read_header(tmp_path / "x.gguf")
