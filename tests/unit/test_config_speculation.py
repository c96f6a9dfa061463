"""Which shapes of drafts may be asked for."""

from __future__ import annotations

from typing import Any

import pytest

from nextn.config import EngineConfig
from nextn.draft import AUTO_STEPS, Shape


def config(steps: int | None, topk: int = 1, nodes: int | None = None) -> EngineConfig:
    return EngineConfig(
        speculative_num_steps=steps, speculative_eagle_topk=topk, speculative_num_draft_tokens=nodes
    )


@pytest.mark.parametrize(
    ("asked", "shape"),
    [
        ((3, 1, 4), Shape(1, 3)),
        ((3, 2), Shape(2, 6)),
        ((1, 4, 5), Shape(4, 4)),
        ((3, 2, 11), Shape(2, 10)),
        ((3, 2, 4), Shape(2, 3)),
    ],
)
def test_shapes(asked: tuple[int, ...], shape: Shape) -> None:
    asks = config(*asked)
    asks.check()
    assert asks.speculation.shape == shape


@pytest.mark.parametrize(
    ("asks", "auto", "drafts"),
    [
        (config(None), True, 8),
        (config(AUTO_STEPS), True, 8),
        (config(3), False, 3),
        (config(0), False, 0),
        (config(None, 2), True, 4),
        (config(AUTO_STEPS, 2), True, 4),
        (config(AUTO_STEPS, 1, 3), False, 2),
        (EngineConfig(speculative_simulate_accept_length=2.5), False, 2),
        (EngineConfig(speculative_algorithm="NONE"), False, 0),
    ],
)
def test_depth_is_chosen_step_by_step(asks: EngineConfig, auto: bool, drafts: int) -> None:
    asks.check()
    assert (asks.speculation.auto, asks.speculation.num_steps) == (auto, drafts)


@pytest.mark.parametrize(
    "more",
    [
        {"speculative_eagle_topk": 2},
        {"speculative_draft_model_path": "x"},
        {"speculative_draft_model_quantization": "w8a16"},
        {"speculative_token_map": "x"},
        {"speculative_verify": "rejection"},
    ],
)
def test_ngrams_take_no_draft_layers_options(more: dict[str, Any]) -> None:
    plain = EngineConfig(speculative_algorithm="NGRAM")
    plain.check()
    asks = plain.speculation
    assert (asks.mtp, asks.auto, asks.num_steps) == (False, True, 8)
    name = next(iter(more)).replace("_", "-")
    with pytest.raises(ValueError, match=f"--{name} is .*--speculative-algorithm NGRAM (drafts|has)"):
        EngineConfig(speculative_algorithm="NGRAM", **more).check()


def test_ngrams_beside_a_draft_layer() -> None:
    both = EngineConfig(speculative_algorithm="NEXTN+NGRAM", speculative_draft_model_path="x")
    both.check()
    asks = both.speculation
    assert (asks.mtp, asks.ngrams, asks.num_steps) == (True, True, 8)
    for more in ({"speculative_eagle_topk": 2}, {"speculative_verify": "block"}):
        with pytest.raises(ValueError, match=r"--speculative-algorithm NEXTN\+NGRAM (drafts|has)"):
            EngineConfig(speculative_algorithm="NEXTN+NGRAM", **more).check()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        ((3, 1, 5), r"--speculative-num-draft-tokens is 5: a chain verifies .* = 4 tokens"),
        ((3, 2, 12), r"--speculative-num-draft-tokens is 12: .* has at most 11 nodes"),
        ((3, 2, 3), r"--speculative-num-draft-tokens is 3: .* needs 4 to be that deep"),
        ((1, 2, 4), r"has at most 3 nodes"),
        ((2, 0), r"--speculative-eagle-topk is 0: it must be between 1 and 32"),
        ((2, 33), r"--speculative-eagle-topk is 33"),
        ((17,), r"--speculative-num-steps is 17"),
    ],
)
def test_refusals(asked: tuple[int, ...], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        config(*asked).check()
