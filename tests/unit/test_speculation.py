"""One table of refusals: what the options may not ask for, no request may ask for either."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from nextn.config import EngineConfig
from nextn.engine.engine import Engine
from nextn.request import Request, SamplingParams, SpeculativeParams

ENGINES: dict[str, dict[str, Any]] = {
    "off": {"speculative_num_steps": 0},
    "none": {"speculative_algorithm": "NONE"},
    "chains": {"speculative_num_steps": 2},
    "trees": {"speculative_num_steps": 2, "speculative_eagle_topk": 2},
    "n-grams": {"speculative_algorithm": "NGRAM"},
    "by lot": {"speculative_simulate_accept_length": 1.5},
}
VERIFY = ("exact", "rejection", "block", "typical")
REFUSED = {
    *((engine, mode) for engine in ("trees", "n-grams") for mode in ("rejection", "block")),
    *(("by lot", mode) for mode in VERIFY[1:]),
}


def refusal(call: Any) -> str | None:
    try:
        call()
    except ValueError as e:
        return str(e)
    return None


@pytest.mark.parametrize("mode", VERIFY)
@pytest.mark.parametrize("options", ENGINES.values(), ids=ENGINES)
def test_options_and_requests_are_refused_alike(options: dict[str, Any], mode: str) -> None:
    name = next(name for name, each in ENGINES.items() if each is options)
    asked = SpeculativeParams(verify=mode)
    option = refusal(EngineConfig(**options, speculative_verify=mode).check)
    engine = Engine(EngineConfig(model_path="fake:0.5", **options))
    request = Request("a", [5], SamplingParams(speculative=asked))
    said = refusal(lambda: engine.add(request))
    assert said == refusal(lambda: engine.set_speculative_defaults(asked))
    assert (option is not None, said is not None) == ((name, mode) in REFUSED,) * 2
    if option is not None and said is not None:
        assert option.removeprefix("--speculative-verify") == said.removeprefix("speculative.verify")


@pytest.mark.parametrize("name", ["off", "none"])
def test_drafts_need_a_drafter(name: str) -> None:
    engine = Engine(EngineConfig(model_path="fake:0.5", **ENGINES[name]))
    said = refusal(lambda: engine.set_speculative_defaults(SpeculativeParams(num_steps=2)))
    assert said is not None
    assert said.startswith("speculative.num_steps is 2: there is no drafter, so it can only be 0;")
    with pytest.raises(ValueError, match="--speculative-num-steps is 2: there is no drafter"):
        EngineConfig(speculative_algorithm="NONE", speculative_num_steps=2).check()


def test_a_model_without_an_mtp_layer_leaves_nothing_to_draft_with() -> None:
    asked = EngineConfig().speculation
    assert (asked.mtp, asked.auto, asked.num_steps) == (True, True, 8)
    assert asked.on(1) is asked
    without = asked.on(0)
    assert (without.mtp, without.auto, without.num_steps, without.beyond) == (False, False, 0, 0)
    for own in ("NGRAM", "NONE"):
        ngram = EngineConfig(speculative_algorithm=own).speculation
        assert ngram.on(0) is ngram


def test_it_is_resolved_once_and_crosses_to_another_process() -> None:
    config = EngineConfig(speculative_num_steps=3)
    assert config.speculation is config.speculation
    assert pickle.loads(pickle.dumps(config)).speculation == config.speculation
