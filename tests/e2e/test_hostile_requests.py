"""Requests and weights that once ended the engine: with the embedded model in-process, and over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from support.broken_engine import BROKEN, WHOLE, break_requests
from support.server_process import ServerProcess, idle, until
from tokenizers import Tokenizer

from nextn.config import EMBEDDED, EngineConfig, model_folder
from nextn.constraint import Constraint
from nextn.engine.engine import Engine
from nextn.grammar.compiler import GrammarCompiler
from nextn.models.names import nextn_tensors
from nextn.request import Request, SamplingParams, SpeculativeParams

TREE = {"speculative_eagle_topk": 2, "speculative_num_steps": 3}
SHAPES: dict[str, dict[str, Any]] = {
    "chain": {"speculative_num_steps": 3}, "auto": {}, "tree": TREE,
    "both": {"speculative_algorithm": "NEXTN+NGRAM"},
}  # fmt: skip
# Verify modes that are tried; on plain torch, which is slow, none.
MODES: dict[str, tuple[str, ...]] = {
    "chain": ("rejection", "block"), "auto": (),
    "tree": ("typical",), "both": (),
}  # fmt: skip
TINY = (1e-39, 1e-45, 5e-324)
LENGTH = 10  # of requests beside one whose logits are not finite, in tokens
SCHEMA = json.dumps({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
CHOICE = Constraint("choice", json.dumps(["yes", "no way"]))
HOSTILE: dict[str, SamplingParams] = {
    **{f"{p} at {t}": SamplingParams(repetition_penalty=p, temperature=t) for p in TINY for t in (0, 1)},
    "min_tokens beyond the choice": SamplingParams(constraint=CHOICE, min_tokens=20),
    "no way to end": SamplingParams(constraint=CHOICE, min_tokens=20, ignore_eos=True, temperature=0.0),
    "schema": SamplingParams(constraint=Constraint("json_schema", SCHEMA), min_tokens=12),
    "all stop": SamplingParams(stop_token_ids=tuple(range(64)), min_tokens=9, top_k=2**31, top_p=1e-30),
}  # fmt: skip

ON_KERNELS = (
    "1e-39 at 1",
    "1e-45 at 0",
    "1e-45 at 1",
    "5e-324 at 0",
    "min_tokens beyond the choice",
    "sampled",
)


@pytest.fixture(scope="module")
def token_map(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokens among which there is hardly one that JSON can go on with."""
    path = tmp_path_factory.mktemp("map") / "some.json"
    path.write_text(json.dumps(list(range(300, 400))))
    return path


def make(**options: Any) -> Engine:
    return Engine(EngineConfig(threads=1, kv_cache_tokens=4096, check_integrity=True, **options))


def texts(engine: Engine, verify: str | None = None) -> dict[str, tuple[list[int], str | None]]:
    """Of the hostile requests and of two others among them. On plain torch, which is slow, of fewer."""
    grammars = GrammarCompiler(engine.config, engine.vocab_size, engine.eos_token_ids)
    jobs = {**HOSTILE, "greedy": SamplingParams(temperature=0), "sampled": SamplingParams(top_p=0.9)}
    if engine.config.kernel_backend == "reference":
        jobs = {rid: params for rid, params in jobs.items() if rid not in ON_KERNELS}
    found: dict[str, tuple[list[int], str | None]] = {}
    for i, (rid, params) in enumerate(jobs.items()):
        params = params.replace(max_tokens=24, seed=i, speculative=SpeculativeParams(verify=verify))
        grammar = None if params.constraint is None else grammars.compile(params.constraint)
        engine.add(Request(rid, [5 + i, 300, 301, 302], params, grammar=grammar))
        found[rid] = ([], None)
    while engine.has_work():
        for out in engine.step():
            assert out.error is None
            found[out.rid] = (found[out.rid][0] + out.tokens, out.finish_reason)
    assert engine.stats().used_tokens == 0
    return found


@pytest.fixture(scope="module", params=["auto", "reference"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=SHAPES)
def shape(backend: str, request: pytest.FixtureRequest) -> str:
    if backend == "reference" and request.param != "tree":
        pytest.skip("plain torch is slow, and drafts and verifies chains as it does trees")
    return str(request.param)


@pytest.fixture
def modes(backend: str, shape: str) -> tuple[str, ...]:
    return () if backend == "reference" else MODES[shape]


@pytest.fixture(scope="module")
def plain(backend: str) -> dict[str, tuple[list[int], str | None]]:
    """What they give without drafts."""
    found = texts(make(speculative_num_steps=0, kernel_backend=backend))
    tokenizer = Tokenizer.from_file(str(model_folder(EMBEDDED) / "tokenizer.json"))
    text = {rid: tokenizer.decode(found[rid][0]) for rid in found}
    for rid in {"min_tokens beyond the choice", "no way to end"} & found.keys():
        assert text[rid] in ("yes", "no way")
        assert found[rid][1] == "stop"
    return found


def test_hostile_requests(
    shape: str,
    backend: str,
    modes: tuple[str, ...],
    plain: dict[str, tuple[list[int], str | None]],
    token_map: Path,
) -> None:
    options = {**SHAPES[shape], "kernel_backend": backend}
    assert texts(make(**options)) == plain
    if backend != "reference" and shape == "chain":  # with trees: the server below
        assert texts(make(speculative_token_map=str(token_map), **options)) == plain
    for mode in modes:
        found = texts(make(**options), mode)
        assert all(reason in ("stop", "length") for _, reason in found.values())


def test_a_draft_layer_of_nan(
    shape: str, backend: str, modes: tuple[str, ...], plain: dict[str, tuple[list[int], str | None]]
) -> None:
    """There is no guess; the text is the target's."""
    engine = make(**{"speculative_num_steps": 3, **SHAPES[shape]}, kernel_backend=backend)
    cfg, place = engine._executor.model.config, getattr(engine._executor.model, "place", None)
    for name, size in nextn_tensors(cfg, 1).items():
        if name.endswith(("enorm.weight", "eh_proj.weight")):
            broken = torch.full(size, torch.nan)
            if place is None:
                engine._executor.model.targets()[name].copy_(broken)  # type: ignore[attr-defined]
            else:
                place(name, broken)
    assert texts(engine) == plain
    proposed = list(engine.stats().spec.proposed)  # by grammars, which leave one way to go on, and by n-grams
    engine.add(Request("free", [5, 300, 301], SamplingParams(max_tokens=9, temperature=0, ignore_eos=True)))
    while engine.has_work():
        engine.step()
    assert shape == "both" or engine.stats().spec.proposed == proposed
    for mode in modes[:1]:
        texts(engine, mode)


def test_logits_that_are_not_finite_end_their_request(shape: str, backend: str) -> None:
    """And what its pages hold then spoils nobody who gets them."""
    wanted = None
    options = {"kernel_backend": backend, "disable_radix_cache": True}
    for own in ({"speculative_num_steps": 0}, SHAPES[shape]):
        engine = break_requests(make(**own, **options))
        found: dict[str, tuple[list[int], str | None, str | None]] = {}
        for turn in range(2):
            for i, first in enumerate((20, BROKEN, 21)):
                rid = f"{turn} {first}"
                params = SamplingParams(max_tokens=LENGTH, seed=i, temperature=i * 0.5, ignore_eos=True)
                engine.add(Request(rid, [first, 300, 301 + i], params))
                found[rid] = ([], None, None)
            while engine.has_work():
                for out in engine.step():
                    tokens = found[out.rid][0] + out.tokens
                    found[out.rid] = (tokens, out.finish_reason, out.error_code)
            assert engine.stats().used_tokens == 0
            engine._executor.pool.data[:, engine._executor.pool.page_size :] = torch.nan
        for turn in range(2):
            assert found[f"{turn} {BROKEN}"][1:] == ("error", "logits_not_finite")
            assert WHOLE <= len(found[f"{turn} {BROKEN}"][0]) < LENGTH
            assert all(len(found[f"{turn} {first}"][0]) == LENGTH for first in (20, 21))
        others = {rid: f for rid, f in found.items() if str(BROKEN) not in rid.split()}
        assert others == (wanted or others)
        wanted = others
        assert [found[f"0 {n}"] == found[f"1 {n}"] for n in (20, BROKEN, 21)] == [True] * 3


# --- a real server


@pytest.fixture(scope="module")
def server(token_map: Path) -> Iterator[ServerProcess]:
    script = Path(__file__).parents[1] / "support" / "broken_engine.py"
    command = [
        str(script), "--port", "0", "--threads", "1", "--check-integrity", "--kv-cache-tokens", "4096",
        "--speculative-eagle-topk", "2", "--speculative-num-steps", "3",
        "--speculative-token-map", str(token_map),
    ]  # fmt: skip
    with ServerProcess(command) as running:
        yield running


def post(server: ServerProcess, path: str = "/v1/completions", **body: Any) -> httpx.Response:
    body = {"prompt": "import os\n", "max_tokens": 24, "seed": 5, **body}
    return httpx.post(server.url + path, json=body, timeout=60)


def test_a_server_stays(server: ServerProcess) -> None:
    """The same engine from the first of them to the last, and nothing left in it."""
    pid, healthy = server.engine_pid(), post(server).json()["choices"]
    attacks: list[dict[str, Any]] = [
        {"repetition_penalty": p, "temperature": t} for p in TINY for t in (0, 1)
    ]
    attacks += [
        {"guided_choice": ["yes", "no way"], "min_tokens": 20},
        {"guided_choice": ["yes", "no way"], "min_tokens": 20, "ignore_eos": True, "temperature": 0},
        {"json_schema": json.loads(SCHEMA), "min_tokens": 12},
        {"json_schema": json.loads(SCHEMA), "logprobs": 3, "echo": True},
        {"stop_token_ids": list(range(64)), "min_tokens": 20, "top_k": 2**31 - 1, "top_p": 1e-30},
    ]
    for attack in attacks:
        done = post(server, **attack)
        assert done.status_code == 200, (attack, done.text)
        (choice,) = done.json()["choices"]
        assert choice["finish_reason"] in ("stop", "length")
        if "guided_choice" in attack:
            assert choice["text"] in attack["guided_choice"]
    for field, value, rule in (
        ("repetition_penalty", 0, "in (0, 2]"), ("repetition_penalty", 2.5, "in (0, 2]"),
        ("frequency_penalty", -2.5, "in [-2, 2]"), ("presence_penalty", 1e30, "in [-2, 2]"),
        ("temperature", -1, "between 0 and 100"), ("top_p", 0, "in (0, 1]"), ("min_p", 1.5, "in [0, 1]"),
    ):  # fmt: skip
        refused = post(server, **{field: value})
        assert refused.status_code == 400
        shown = refused.json()["error"]
        assert shown["param"] == field
        assert shown["message"].startswith(f"{field} is {float(value)!r}")
        assert shown["message"].endswith(rule)
    assert server.engine_pid() == pid
    assert post(server).json()["choices"] == healthy
    until(lambda: idle(server))


def test_one_request_ends_with_an_error(server: ServerProcess) -> None:
    """500 for it alone, an error event in its stream."""
    pid, healthy = server.engine_pid(), post(server).json()["choices"]
    broken = post(server, prompt=[BROKEN, 300, 301], ignore_eos=True)
    assert broken.status_code == 500
    error = broken.json()["error"]
    assert (error["code"], error["message"]) == ("logits_not_finite", "the model's logits are not finite")
    native = {"max_new_tokens": 9, "ignore_eos": True}
    body = {"input_ids": [BROKEN, 300], "sampling_params": native}
    assert httpx.post(server.url + "/generate", json=body, timeout=60).status_code == 500
    streamed = post(server, prompt=[BROKEN, 300, 301], ignore_eos=True, stream=True)
    assert streamed.status_code == 200
    events = [e.removeprefix("data: ") for e in streamed.text.split("\n\n") if e.startswith("data: ")]
    assert any("logits_not_finite" in e for e in events)
    assert sum("choices" in e for e in events) <= WHOLE + 1
    assert server.engine_pid() == pid
    assert post(server).json()["choices"] == healthy
    until(lambda: idle(server))
