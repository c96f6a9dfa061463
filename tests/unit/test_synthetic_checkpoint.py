"""The synthetic checkpoint: its text is known beforehand, and so is how often its drafts are right."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from nextn import LLM, SamplingParams
from nextn.stats import SpecStats

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
ACCEPTANCE = 0.8


@pytest.fixture(scope="module")
def synthetic() -> Iterator[None]:
    """The scripts' folder on the path, and their modules forgotten afterwards."""
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))
    for name in [n for n, m in sys.modules.items() if str(BENCHMARKS) in str(getattr(m, "__file__", ""))]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def small(synthetic: None):
    from synthetic.sizes import PRESETS

    return dataclasses.replace(
        PRESETS["69m"], vocab_size=700, hidden_size=128, num_hidden_layers=3, num_attention_heads=2,
        intermediate_size=128, moe_intermediate_size=32, q_lora_rank=32, kv_lora_rank=32,
        qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16, max_position_embeddings=512,
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(small, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from synthetic_checkpoint import write_checkpoint

    out = tmp_path_factory.mktemp("synthetic") / "model"
    write_checkpoint(out, small, ACCEPTANCE, seed=3, shard_bytes=300_000)
    return out


@pytest.fixture(scope="module")
def walk(small):
    from synthetic.vocabulary import tokenizer_json
    from synthetic.walk import Walk

    return Walk(small.check(), tokenizer_json(small.vocab_size)[1], ACCEPTANCE, seed=3)


def test_walk_is_one_cycle_over_the_ordinary_tokens(walk) -> None:
    text = walk.text(10, 695)
    assert sorted(text) == list(range(5, 700))
    assert text[-1] == 10


def test_share_of_misses_is_exact(walk) -> None:
    assert sum(walk.drafted(t) for t in range(5, 700)) == round(695 * ACCEPTANCE)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_nextn_walks_and_accepts_as_dialled(folder: Path, walk, dtype: str) -> None:
    llm = LLM(str(folder), dtype=dtype, threads=1, speculative_num_steps=3)
    prompts = [[0, 8, 5 + 21 * i] for i in range(32)]
    done = llm.generate(prompts, SamplingParams(max_tokens=40, temperature=0, ignore_eos=True))
    spec = SpecStats()
    for prompt, one in zip(prompts, done, strict=True):
        assert one.token_ids == walk.text(prompt[-1], 40)
        spec.merge(one.spec)
    for depth, (rate, proposed) in enumerate(zip(spec.accept_rates, spec.proposed, strict=True), 1):
        want = ACCEPTANCE**depth
        error = (want * (1 - want) / proposed) ** 0.5
        assert abs(rate - want) < 3.3 * error, (depth, rate, want)


def test_every_draft_is_as_its_token_says(folder: Path, walk) -> None:
    """Not only the rate: which tokens are missed does not depend on the engine."""
    llm = LLM(str(folder), threads=1, speculative_num_steps=1)
    prompt = [0, 5, 6, 7]
    (done,) = llm.generate([prompt], SamplingParams(max_tokens=100, temperature=0, ignore_eos=True))
    before = [prompt[-1], *done.token_ids]
    # The first token comes from the prompt; for the last one there is no room to draft.
    for i, depth in enumerate(done.drafted[1:-1], 1):
        if depth:
            assert walk.drafted(before[i]), i
        else:
            # Its draft was wrong, or it is the bonus after a draft that was right.
            assert not walk.drafted(before[i]) or done.drafted[i - 1] == 1, i
    assert 0 < sum(depth == 0 for depth in done.drafted) < 100


def test_special_tokens_lead_into_the_walk(folder: Path, walk) -> None:
    llm = LLM(str(folder), threads=1)
    (done,) = llm.generate([[9, 1]], SamplingParams(max_tokens=5, temperature=0))
    assert done.token_ids == walk.text(1, 5)
    assert done.finish_reason == "length"


def test_transformers_walks_too(folder: Path, walk) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    out = model.generate(
        torch.tensor([[0, 77, 300]]), attention_mask=torch.ones(1, 3), max_new_tokens=24, do_sample=False
    )
    assert out[0, 3:].tolist() == walk.text(300, 24)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert len(tokenizer) == 700


def test_layers_take_part(folder: Path, walk) -> None:
    """The text does not depend on the layers, but they are read and they do write something."""
    from synthetic.sizes import checkpoint_tensors

    from nextn.families.config import ModelConfig

    weights: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as shard:
            assert not set(shard.keys()) & set(weights)
            weights |= {name: shard.get_tensor(name) for name in shard.keys()}  # noqa: SIM118
    shapes = checkpoint_tensors(ModelConfig.from_folder(folder))
    assert {name: tuple(t.shape) for name, t in weights.items()} == shapes
    assert all(t.abs().sum() > 0 for t in weights.values())
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(shapes)
    assert len(set(index["weight_map"].values())) > 1
    assert index["metadata"]["total_size"] == sum(t.numel() * t.element_size() for t in weights.values())


def test_same_seed_same_bytes(small, folder: Path, tmp_path: Path) -> None:
    from synthetic_checkpoint import write_checkpoint

    write_checkpoint(tmp_path / "a", small, ACCEPTANCE, seed=3, shard_bytes=300_000)
    write_checkpoint(tmp_path / "b", small, ACCEPTANCE, seed=4, shard_bytes=300_000)
    for file in folder.iterdir():
        assert (tmp_path / "a" / file.name).read_bytes() == file.read_bytes(), file.name
    for file in folder.glob("*.safetensors"):
        assert (tmp_path / "b" / file.name).read_bytes() != file.read_bytes(), file.name


def test_nothing_is_left_when_writing_fails(small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import synthetic_checkpoint
    from synthetic.walk import Walk

    def full(self: object, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        raise OSError("no space left on device")

    monkeypatch.setattr(Walk, "tensor", full)
    with pytest.raises(OSError, match="no space"):
        synthetic_checkpoint.write_checkpoint(tmp_path / "out", small, 0.9)
    assert list(tmp_path.iterdir()) == []


def test_output_that_exists_is_kept(small, folder: Path) -> None:
    from synthetic_checkpoint import write_checkpoint

    with pytest.raises(ValueError, match="exists; name a new folder"):
        write_checkpoint(folder, small, 0.9)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--acceptance", "1.5"], "--acceptance is 1.5; it must be between 0 and 1"),
        (["--vocab-size", "100"], "--vocab-size is 100; 5 special tokens and 256 bytes need 261"),
        (["--hidden-size", "32"], "--hidden-size is 32; it must be at least 64"),
        (["--num-attention-heads", "0"], "--num-attention-heads is 0; it must be at least 1"),
        (["--n-routed-experts", "7"], "n_group"),
    ],
)
def test_mistakes_are_named(
    synthetic: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    from synthetic_checkpoint import main

    with pytest.raises(SystemExit) as end:
        main(["--output", str(tmp_path / "out"), "--size", "69m", *arguments])
    assert end.value.code == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_presets_are_as_large_as_they_say(synthetic: None) -> None:
    from synthetic.sizes import PRESETS, bytes_per_token, parameters

    cfg = PRESETS["1b"].check()
    assert parameters(cfg) == pytest.approx(909.7e6, rel=1e-3)
    assert bytes_per_token(cfg) == pytest.approx(431.0e6, rel=1e-3)
    cfg = PRESETS["69m"].check()
    assert parameters(cfg) == pytest.approx(71.8e6, rel=1e-3)
    assert bytes_per_token(cfg) == pytest.approx(64.5e6, rel=1e-3)


@pytest.mark.parametrize("size", [261, 700, 4096, 9000])
def test_tokenizer_of_any_size_knows_all_its_tokens(synthetic: None, size: int) -> None:
    import tokenizers
    from synthetic.vocabulary import tokenizer_json

    made, special = tokenizer_json(size)
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(made))
    assert special == 5
    assert tokenizer.get_vocab_size() == size
    assert sorted(tokenizer.get_vocab().values()) == list(range(size))
    text = "def read(path):\n    return path.read_text()  # ünïcode\n"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
