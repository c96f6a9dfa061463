"""Draft trees, node by node, equal those of a slow cache-free reference; what is accepted follows from them.

A path that saw a sibling's cache entry, or a position that is off by one, would show here and nowhere else.
"""

from __future__ import annotations

import pytest
from parity.engine_steps import make_engine
from parity.nextn_reference import NextNReference
from parity.oracle import random_checkpoint
from support.checkpoints import write_checkpoint
from tokenizers import Tokenizer

from nextn.config import EMBEDDED, model_folder
from nextn.draft import Draft, Shape
from nextn.request import Request, SamplingParams

PROMPTS = {"short": "import os\n", "longer": "def area(width, height):\n    return width * height\n\n\ndef "}
# topk, steps, nodes and root; temperature
TREES = [(2, 3, 7, 0.0), (3, 2, 12, 1.0), (4, 4, 10, 1.0)]
MODELS = ("random-1", "random-3")


@pytest.fixture(scope="module")
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> NextNReference:
    kind, _, number = request.param.partition("-")
    layers = int(number)  # one for each depth, or chained from the last on
    folder = tmp_path_factory.mktemp(kind)
    if kind == "tiny":
        return NextNReference(model_folder(EMBEDDED))
    config, tensors = random_checkpoint({"num_nextn_predict_layers": layers}, seed=3)
    return NextNReference(write_checkpoint(folder, config, tensors), count=layers)


def trained(reference: NextNReference) -> bool:
    return reference.target.config.vocab_size > 1000


def prompts(reference: NextNReference) -> dict[str, list[int]]:
    if trained(reference):
        tokenizer = Tokenizer.from_file(str(model_folder(EMBEDDED) / "tokenizer.json"))
        return {name: tokenizer.encode(text).ids for name, text in PROMPTS.items()}
    return {"one": [5], "some": [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]}


@pytest.mark.parametrize(
    ("reference", "topk", "steps", "nodes", "temperature"),
    [*((model, *tree) for model in MODELS for tree in TREES), ("tiny-1", *TREES[-1])],
    indirect=["reference"],
)
def test_every_tree(reference: NextNReference, topk: int, steps: int, nodes: int, temperature: float) -> None:
    engine = make_engine(
        reference.folder, steps, speculative_eagle_topk=topk, speculative_num_draft_tokens=nodes
    )
    params = SamplingParams(max_tokens=10, temperature=temperature, seed=5, ignore_eos=True)
    for rid, prompt in prompts(reference).items():
        engine.add(Request(rid, prompt, params))
    wide = accepted = 0
    while engine.has_work():
        plan = engine._scheduler.plan()
        result = engine._executor.launch(plan).result()
        for span, res in zip(plan.spans, result.spans, strict=True):
            if not span.chooses:
                continue
            req = engine._scheduler.by_rid[span.rid]
            paths = [[span.draft.tokens[i] for i in span.draft.path(n)] for n in range(len(span.draft))]
            for length in range(1, len(res.tokens)):
                assert res.tokens[:length] in paths
            assert res.tokens not in paths  # whatever could be accepted was
            assert res.tokens == reference.verify(req.tokens, res.tokens[:-1], params)
            accepted += len(res.tokens) - 1
            text = [*req.tokens, *res.tokens]
            deep = min(steps, req.limit - len(text) - 1)
            if deep > 0:
                want = reference.tree(text, deep, Shape(topk, nodes - 1), params)
                assert alike(res.draft, want)
                wide += res.draft.parents is not None
        engine._scheduler.commit(plan, result)
        engine.check_integrity()
    assert wide
    assert accepted or not trained(reference)


def alike(a: Draft, b: Draft) -> bool:
    """The same nodes, up to the order of those that are as good as equally likely."""
    assert a.logprobs is not None
    assert b.logprobs is not None
    ours, theirs = (
        {tuple(d.tokens[i] for i in d.path(n)): c for n, c in enumerate(d.logprobs or ())} for d in (a, b)
    )
    least = min(ours.values())
    return all(
        abs(ours.get(path, least) - theirs.get(path, least)) < 1e-3 for path in ours.keys() | theirs.keys()
    )
