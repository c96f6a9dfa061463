"""A GGUF file as a checkpoint folder: made once, whole, and again for another file."""

import json
import os
import threading
from pathlib import Path

import pytest
from support.gguf_files import F32_TENSOR, gguf_bytes, guessed, tensor
from support.gguf_models import as_gguf

from nextn.checkpoint_error import CheckpointError
from nextn.config import EMBEDDED, EngineConfig, model_folder
from nextn.families.config import ModelConfig
from nextn.families.digest import digest
from nextn.families.files import checkpoint_folder
from nextn.gguf import folder
from nextn.gguf.files import gguf_name, is_gguf
from nextn.gguf.folder import gguf_folder
from nextn.server_config import ServerConfig

NAMES = [
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "weights.gguf.json",
]  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "nextn" / "gguf"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return as_gguf(model_folder(EMBEDDED), tmp_path_factory.mktemp("tiny") / "tiny.gguf", "q4_0")


def test_once_and_whole(tiny, cache, monkeypatch):
    found = gguf_folder(tiny)
    assert found.parent == cache
    assert found.name.startswith("tiny-")
    assert sorted(p.name for p in found.iterdir()) == NAMES
    assert json.loads((found / "weights.gguf.json").read_text()) == {"files": [str(tiny)]}
    assert os.listdir(cache) == [found.name]
    monkeypatch.setattr(folder, "read_parts", None)  # not read again
    assert model_folder(str(tiny)) == found


def test_links_keep_their_names(tmp_path):
    """As in the cache of the Hugging Face hub, where files are links to blobs."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    first = as_gguf(model_folder(EMBEDDED), tmp_path / "m.gguf", "q4_0", split=100)
    for i, file in enumerate(sorted(tmp_path.glob("m-*.gguf"))):
        (snapshot / file.name).symlink_to(file.rename(blobs / f"{i}"))
    found = gguf_folder(snapshot / first.name)
    assert found.name.startswith("m-")
    assert ModelConfig.from_folder(found) == ModelConfig.from_folder(model_folder(EMBEDDED))


def test_the_config_is_the_model_s(tiny):
    assert ModelConfig.from_folder(gguf_folder(tiny)) == ModelConfig.from_folder(model_folder(EMBEDDED))


def test_another_file_and_another_release_have_another(tiny, tmp_path, monkeypatch):
    file = tmp_path / "m.gguf"
    file.write_bytes(tiny.read_bytes())
    first = gguf_folder(file)
    os.utime(file, ns=(1, 1))
    second = gguf_folder(file)
    monkeypatch.setattr(folder, "__version__", "next")
    assert len({first, second, gguf_folder(file)}) == 3


def test_processes_that_make_it_at_once(tiny, cache):
    """Each finds it whole, and nothing else is left."""
    start, found = threading.Barrier(6), []

    def make():
        start.wait()
        found.append(gguf_folder(tiny))

    threads = [threading.Thread(target=make) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert os.listdir(cache) == [found[0].name]
    assert sorted(p.name for p in found[0].iterdir()) == NAMES


def test_a_file_that_cannot_be_served_leaves_nothing(tmp_path, cache):
    file = tmp_path / "m.gguf"
    file.write_bytes(gguf_bytes({"general.architecture": guessed("gemma3")}))
    with pytest.raises(CheckpointError, match=r"m\.gguf: key 'general\.architecture' is 'gemma3'"):
        gguf_folder(file)
    assert not cache.exists()


def test_no_place_to_write(tiny, cache):
    cache.parent.parent.mkdir()
    cache.parent.touch()
    with pytest.raises(CheckpointError, match=r"tiny\.gguf: .* cannot be written to .*XDG_CACHE_HOME"):
        gguf_folder(tiny)


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ([], "it contains only a vocabulary, no weights"),
        (
            [tensor("blk.0.ffn_down.weight", [256], 16, 0), tensor("output.weight", [32], 20, 96)],
            "2 tensors are of a type that nextn does not read: blk.0.ffn_down.weight (IQ2_XXS), "
            "output.weight (IQ4_NL); supported are F32, F16, BF16, Q4_0",
        ),
    ],
)
def test_files_without_weights_that_can_be_read(tmp_path, tensors, said):
    file = tmp_path / "m.gguf"
    file.write_bytes(gguf_bytes({"general.architecture": guessed("deepseek2")}, tensors, bytes(128)))
    with pytest.raises(CheckpointError) as e:
        gguf_folder(file)
    assert str(e.value).startswith(f"{file}: {said}")


def test_rope_factors_are_read_from_the_file(tmp_path):
    """Llama 3's: they must be small, and f32."""
    keys = {
        "general.architecture": "llama", "llama.block_count": 1, "llama.context_length": 512,
        "llama.embedding_length": 8, "llama.attention.head_count": 1, "llama.feed_forward_length": 8,
        "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": ["a", "b", "ab"], "tokenizer.ggml.merges": ["a b"],
    }  # fmt: skip
    import struct

    made = {k: guessed(v) for k, v in keys.items()}
    file = tmp_path / "m.gguf"
    for values, said in (([1.0, 1.0, 1.0, 1.0], None), ([1.0, 2.0, 9.0, 9.0], "are not Llama 3's")):
        data = struct.pack("<4f", *values) + bytes(16)
        file.write_bytes(gguf_bytes(made, [tensor("rope_freqs.weight", [4], F32_TENSOR, 0)], data))
        if said is None:
            config = json.loads((gguf_folder(file) / "config.json").read_text())
            assert config["rope_scaling"]["rope_type"] == "llama3"
            continue
        with pytest.raises(CheckpointError, match=said):
            gguf_folder(file)
    file.write_bytes(gguf_bytes(made, [tensor("rope_freqs.weight", [32], 8, 0)], bytes(64)))
    with pytest.raises(CheckpointError, match=r"'rope_freqs\.weight' must be of at most"):
        gguf_folder(file)


def test_what_is_a_gguf_file(tiny, tmp_path):
    nameless = tmp_path / "sha256-12ab"
    nameless.write_bytes(tiny.read_bytes())
    text = tmp_path / "notes.txt"
    text.write_text("x")
    assert [is_gguf(p) for p in (tiny, nameless, text, tmp_path)] == [True, True, False, False]
    assert gguf_folder(nameless).name.startswith("sha256-12ab-")
    for path, said in (
        (text, "is a file; --model-path must name the folder that contains config.json, or a GGUF file"),
        (tmp_path / "no.gguf", "there is no such file; --model-path must name an existing file"),
    ):
        with pytest.raises(CheckpointError, match=said):
            checkpoint_folder(model_folder(str(path)))


def test_the_model_is_called_after_its_file():
    assert ServerConfig(model_path="/m/GLM-Q4_K_M.gguf").model_name == "GLM-Q4_K_M"
    assert ServerConfig(model_path="/m/V3-00001-of-00009.gguf").model_name == "V3"
    assert ServerConfig(model_path="/m/V3.gguf", served_model_name="x").model_name == "x"
    assert ServerConfig(model_path="/m/V3").model_name == "V3"
    assert gguf_name("/m/V3.GGUF") == "V3"


def test_ranks_compare_the_file(tiny, tmp_path):
    """On several machines it has other paths, and the same weights."""
    other = tmp_path / "tiny.gguf"
    other.write_bytes(tiny.read_bytes())
    want = digest(model_folder(str(tiny)))
    assert digest(model_folder(str(other))) == want
    data = bytearray(tiny.read_bytes())
    data[len(data) // 2 + 100] ^= 1
    other.write_bytes(data)
    assert digest(model_folder(str(other))) != want
    assert EngineConfig(model_path=str(Path(tiny))).model_path == str(tiny)
