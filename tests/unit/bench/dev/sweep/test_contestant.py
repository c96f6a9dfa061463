"""What is asked of a side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.small_tokenizer import write_small_tokenizer

from nextn.bench.datasets import Sample
from nextn.bench.dev.sweep import contestant as module
from nextn.bench.dev.sweep.contestant import Contestant, meet, salted
from nextn.bench.dev.sweep.sides import SideSpec
from nextn.bench.errors import BenchError
from nextn.bench.target import Target
from nextn.config import EMBEDDED, model_folder
from nextn.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def embedded() -> Tokenizer:
    return Tokenizer.from_folder(model_folder(EMBEDDED))


def contestant(tokenizer: Tokenizer | None, backend: str = "nextn") -> Contestant:
    spec = SideSpec("it", url="http://h", backend=backend)
    return Contestant(spec, Target("http://h", "m", tokenizer, None), {}, None)


def test_ids_only_for_a_side_with_the_same_tokens(embedded: Tokenizer, tmp_path: Path) -> None:
    ids = Sample(embedded.encode("def f():", add_special_tokens=False), 8)
    text = Sample("def f():", 8)
    again = Tokenizer.from_folder(model_folder(EMBEDDED))
    small = Tokenizer.from_folder(write_small_tokenizer(tmp_path))
    assert contestant(again).takes([ids, text], embedded) == [ids, text]
    assert contestant(small).takes([ids], embedded) == [text]
    assert contestant(None).takes([ids], embedded) == [text]
    assert contestant(again, "sglang-oai-chat").takes([ids], embedded) == [text]
    assert contestant(None).takes([text], None) == [text]


def test_a_seed_only_where_something_is_drawn() -> None:
    sample = Sample("p", 8)
    assert contestant(None).body(sample, 0.0, 5) == {
        "model": "m", "prompt": "p", "max_tokens": 8, "temperature": 0.0, "ignore_eos": True,
    }  # fmt: skip
    drawn = contestant(None, "vllm").body(sample, 0.7, 5)
    assert (drawn["temperature"], drawn["seed"]) == (0.7, 5)
    native = contestant(None, "sglang").body(sample, 0.7, 5)
    assert native["sampling_params"] == {
        "temperature": 0.7, "max_new_tokens": 8, "ignore_eos": True, "sampling_seed": 5,
    }  # fmt: skip
    assert "seed" not in native


def test_the_warm_up_is_short_and_another_prompt() -> None:
    body = contestant(None).warmup_body(Sample("abc", 500))
    assert (body["prompt"], body["max_tokens"]) == ("cba", 32)


def test_salted_prompts_begin_alike_nowhere(embedded: Tokenizer) -> None:
    ids = list(range(300, 340))
    samples = [Sample("def f():", 8), Sample(ids, 8), Sample(ids, 8), Sample(ids[:3], 8)]
    first, second = salted(samples, "salt.0", embedded), salted(samples, "salt.1", embedded)
    assert first == salted(samples, "salt.0", embedded)
    assert isinstance(first[0].prompt, str)
    assert first[0].prompt.endswith("\ndef f():")
    assert first[0].prompt.startswith("# ")
    assert [len(s.prompt) for s in first[1:]] == [40, 40, 3]  # exactly as long as before
    assert first[1].prompt[-10:] == ids[-10:]
    assert len({str(s.prompt)[:30] for s in (*first[:3], *second[:3])}) == 6


def test_whether_a_prompt_may_be_cached() -> None:
    side = contestant(None)
    assert side.caches_prompts  # another engine: nobody knows
    keeps = Contestant(side.spec, side.target, {"disable_radix_cache": False}, None)
    none = Contestant(side.spec, side.target, {"disable_radix_cache": True}, None)
    assert (keeps.caches_prompts, none.caches_prompts) == (True, False)


@pytest.mark.parametrize(
    ("backend", "pages", "context", "ours"),
    [
        ("nextn", {"/v1/models": {"data": [{"id": "m", "max_model_len": 512}]},
                   "/server_info": {"engine": {}, "disable_radix_cache": True}}, 512, True),
        ("vllm", {"/v1/models": {"data": [{"id": "m"}]}}, None, False),
        ("sglang", {"/server_info": {"disable_radix_cache": True}}, None, False),
    ],
)  # fmt: skip
async def test_meeting_a_server(
    backend: str, pages: dict[str, Any], context: int | None, ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def get(url: str, path: str, key: str | None = None) -> Any:
        if path not in pages:
            raise BenchError("404")
        return pages[path]

    async def find_target(url: str, model: None, tokenizer: str | None, key: str | None) -> Target:
        return Target(url, "m" if backend != "sglang" else None, None, key)

    monkeypatch.setattr(module, "get", get)
    monkeypatch.setattr(module, "find_target", find_target)
    met = await meet(SideSpec("it", url="http://h", backend=backend), "http://h", None, None)
    assert (met.context, bool(met.info)) == (context, ours)


async def test_nobody_there() -> None:
    with pytest.raises(BenchError, match=r"the side it: no server at http://127\.0\.0\.1:9\?"):
        await meet(SideSpec("it", url="http://127.0.0.1:9"), "http://127.0.0.1:9", None, None)
