"""Agents of engines with weights: several NextN layers, and engines whose pages would have other bits."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.agents import Pair, Text, alone, engine_of, pair
from support.all_cases import few_or_all
from support.checkpoints import gqa_config, random_tensors, tiny_config, write_checkpoint
from support.native_kernels import built_levels
from support.transfers import Bootstrap

from nextn.config import EMBEDDED
from nextn.engine.engine import Engine
from nextn.families.config import ModelConfig
from nextn.models.names import expected_tensors
from nextn.request import Request, SamplingParams, SpeculativeParams

VOCABULARY = 48
REFERENCE = {"kernel_backend": "reference", "kv_cache_tokens": 512}
PARAMS = SamplingParams(max_tokens=8, temperature=1.0, seed=5, ignore_eos=True)


@pytest.fixture
def bootstrap() -> Iterator[Bootstrap]:
    made = Bootstrap()
    yield made
    made.close()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Folders: of models with two NextN layers each, the last with keys and values in its cache."""
    latent = tiny_config(num_nextn_predict_layers=2)
    grouped = gqa_config("MiMoForCausalLM", num_nextn_predict_layers=2)
    folder: Path = tmp_path_factory.mktemp("models")
    found = {}
    for seed, (name, config) in enumerate({"one": latent, "other": latent, "grouped": grouped}.items()):
        tensors = random_tensors(expected_tensors(ModelConfig.from_dict(config), 2), seed)
        found[name] = str(write_checkpoint(folder / name, config, tensors))
    return found


def prompt(n: int) -> list[int]:
    return random.Random(n).choices(range(2, VOCABULARY), k=n)


def drafted(engine: Engine | Pair, tokens: list[int], params: SamplingParams) -> tuple[Text, list[int]]:
    """The text, and how many drafts of each depth were accepted."""
    if isinstance(engine, Pair):
        rid = str(len(engine.decode.texts))
        engine.ask(rid, tokens, params)
        request = engine.decode.requests[rid]
        engine.settle()
        return engine.decode.texts[rid], list(request.spec.accepted)
    request = Request("alone", list(tokens), params)
    engine.add(request)
    found: list[int] = []
    while True:
        for out in engine.step():
            found += out.tokens
            if out.finish_reason is not None:
                return (found, out.finish_reason, out.matched), list(request.spec.accepted)


@pytest.mark.parametrize(
    ("model", "cache"),
    [
        ("one", "naive"),
        ("grouped", "radix"),
    ],
)
def test_nextn_layers(bootstrap: Bootstrap, models: dict[str, str], model: str, cache: str) -> None:
    """The last of two is a token behind the first. Texts and acceptance are those of one engine, wherever in
    a page a prompt ends."""
    options = REFERENCE | {"disable_radix_cache": cache == "naive", "speculative_num_steps": 2}
    options |= {"page_size": 4}
    one, prefill, decode = (engine_of(models[model], **options) for _ in range(3))
    assert one.info.nextn_layers == 2
    params = PARAMS.replace(max_tokens=6, temperature=0.0, speculative=SpeculativeParams(num_steps=2))
    accepted = 0
    with pair(bootstrap, prefill, decode) as both:
        for n in (1, 2, 3, 4, 5, 6, 30):
            for _ in range(2):  # the second time it is in the cache
                text, counts = drafted(one, prompt(n), params)
                assert drafted(both, prompt(n), params) == (text, counts)
                assert both.decode.agent.stats.fallbacks == 0
                accepted += sum(counts)
        assert both.decode.agent.stats.pages > 0
        both.check_empty()
    assert accepted > 0


NATIVE = pytest.mark.skipif(not built_levels(), reason="no native kernels")


@NATIVE
def test_grouped_query_attention(bootstrap: Bootstrap, tmp_path: Path) -> None:
    """Pages of the native kernels' keys and values, which are filled up."""
    config = gqa_config("Glm4MoeForCausalLM")
    shapes = expected_tensors(ModelConfig.from_dict(config), 1)
    folder = str(write_checkpoint(tmp_path, config, random_tensors(shapes, 3)))
    options = {"kernel_backend": "cpu", "kv_cache_tokens": 512, "page_size": 4, "speculative_num_steps": 1}
    one, prefill, decode = (engine_of(folder, **options) for _ in range(3))
    with pair(bootstrap, prefill, decode) as both:
        for n in (3, 8, 30):
            assert drafted(both, prompt(n), PARAMS) == drafted(one, prompt(n), PARAMS)
        assert (both.decode.agent.stats.fallbacks, both.decode.agent.stats.pages) == (0, 11)
        both.check_empty()


@NATIVE
@pytest.mark.parametrize("backend", few_or_all(["shm"], ["tcp"]))
def test_retracted_on_the_decode_side(bootstrap: Bootstrap, backend: str) -> None:
    """Its pages are too few for all requests. Their prompts' pages came from the prefill server, and those
    that it drops later it computes itself."""
    options: dict[str, Any] = {"page_size": 4, "context_length": 160, "speculative_num_steps": 2}
    one, prefill = (engine_of(EMBEDDED, **options) for _ in range(2))
    decode = engine_of(EMBEDDED, **options | {"kv_cache_tokens": 160})
    prompts = [random.Random(i).choices(range(2, 400), k=20 + i) for i in range(4)]
    params = [PARAMS.replace(max_tokens=56, seed=i, temperature=float(i % 2)) for i in range(4)]
    with pair(bootstrap, prefill, decode, backend=backend) as both:
        for i in range(4):
            both.ask(str(i), prompts[i], params[i])
        both.settle()
        stats = both.decode.agent.stats
        assert (stats.fallbacks, stats.finished) == (0, 4)
        assert decode.stats().retracted > 0
        assert both.decode.texts == {str(i): alone(prompts[i], params[i], one) for i in range(4)}
        both.check_empty()


DIFFERENT: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "layers": (
        "nextn_layers is 1 on the decode server and 2",
        {"speculative_num_steps": 1},
        {"speculative_num_steps": 2},
    ),
    "dtype": (
        "dtype is float32 on the decode server and bfloat16 on the prefill server",
        {"dtype": "float32"},
        {"dtype": "bfloat16"},
    ),
    "model": ("model is", {}, {}),
    "quantization": (
        "weights is",
        {"kernel_backend": "auto"},
        {"kernel_backend": "auto", "quantization": "w8a16"},
    ),
    "backend": ("kernels is", {"kernel_backend": "auto", "dtype": "bfloat16"}, {"dtype": "bfloat16"}),
    "isa": (
        "kernels is",
        {"kernel_backend": "auto", "cpu_isa": "portable"},
        {"kernel_backend": "auto", "cpu_isa": "avx2"},
    ),
}


@NATIVE
@pytest.mark.parametrize("what", DIFFERENT)
def test_pages_with_other_bits_are_refused(
    bootstrap: Bootstrap, models: dict[str, str], what: str, caplog: pytest.LogCaptureFixture
) -> None:
    said, ours, theirs = DIFFERENT[what]
    if what == "isa" and not {"portable", "avx2"} <= {*built_levels()}:
        pytest.skip("this machine runs one level only")
    ours, theirs = ({"speculative_num_steps": 1} | options for options in (ours, theirs))
    model = models["other" if what == "model" else "one"]
    decode, one = (engine_of(models["one"], **REFERENCE | ours) for _ in range(2))
    with pair(bootstrap, engine_of(model, **REFERENCE | theirs), decode) as both:
        with caplog.at_level(logging.WARNING, "nextn"):
            asked = both.asked("a", prompt(20), PARAMS.replace(max_tokens=3))
            both.compute(asked)
            both.answer(asked)
            while both.decode.engine.has_work():
                both.turn()
        assert both.decode.texts["a"] == alone(asked.tokens, asked.params, one)
        assert (both.decode.agent.stats.fallbacks, both.decode.agent.stats.pages) == (1, 0)
        assert f"refused: {said}" in caplog.text or f"; {said}" in caplog.text
