"""The identity matrix: on the embedded model, the text never depends on how it was computed. Nor do the
log-probabilities, which some of the requests ask for: each depends on all logits of its position.

Native kernels (bf16) or plain torch (f32); MTP off or 1, 2, 3 drafts in a chain, as many as pay, n-grams, or
trees; prompts whole or in chunks of 16 tokens; radix cache, none, or a pool so small that requests are
retracted; one request at a time or all at once; T = 0 and seeded T = 1. Every combination must give the token
ids and log-probabilities of the plainest one on the same kernels, to the bit. `HERE` runs in this process.
`ELSEWHERE` runs on several ranks, or plans each step ahead; there as many drafts must be accepted as in this
process. `make test-all` runs more combinations.
"""

import functools
import random

import pytest
from support.all_cases import few_or_all
from support.nodes import free_address, ranks_of_other_nodes

from nextn.bench.prompts import heldout_prompts
from nextn.constraint import Constraint
from nextn.engine import build
from nextn.llm import LLM
from nextn.llm_inputs import engine_config
from nextn.ops.cpu.library import NoLibrary, library
from nextn.request import Request, SamplingParams
from nextn.scheduler.prompt_budget import PromptBudget

TOKENS = {"cpu": 20, "reference": 12}
ASKING = {"cpu": range(10), "reference": (1, 2, 5, 8, 9)}  # plain torch takes ten times as long
ASKED = {1: {"logprobs": 3}, 2: {"logprobs": 0, "prompt_logprobs": 2}, 6: {"logprobs": 1}, 8: {"logprobs": 2}}
CHUNKS = {"whole": {}, "chunks": {"chunked_prefill_size": 16, "max_running_requests": 4}}
CACHES = {
    "radix": {},
    "naive": {"disable_radix_cache": True},
    "retracted": {"kv_cache_tokens": 320, "page_size": 4},
}

# "retracted" is a radix cache, too. Chains of 1, 2 and 3 drafts run the same code; so do both trees.
# ELSEWHERE also runs chains and trees in this process, to compare acceptance.
HERE = few_or_all(
    [
        ("auto", "chunks", "radix"),
        ("NGRAM", "whole", "radix"),
    ],
    [
        ("NEXTN+NGRAM", "chunks", "retracted"),
        ((4, 2, 7), "chunks", "radix"),
        (0, "chunks", "naive"),
        (1, "chunks", "retracted"),
        (3, "whole", "naive"),
        ("auto", "whole", "naive"),
        ("NGRAM", "chunks", "retracted"),
    ],
)

# One combination is enough: neither the scheduler nor the caches depend on the kernels.
ON_PLAIN_TORCH = [((2, 3, 8), "whole", "retracted")]

# Each run is a number of ranks. "ahead": each step is planned before the result of the last one is read, here
# in a thread. Acceptance is compared with a run of one rank that is not ahead, but not with "auto", where it
# depends on times, nor where requests are retracted "ahead", since these lose more drafts.
TREE = ((4, 2, 7), "chunks", "retracted")
ELSEWHERE = few_or_all(
    [
        ("cpu", (0, "whole", "radix"), ("2 ahead",)),
        ("cpu", (2, "chunks", "radix"), ("1 ahead", "2", "4")),  # four ranks on two cores take turns
        ("cpu", (2, "whole", "retracted"), ("1 ahead",)),
        ("cpu", ("auto", "whole", "retracted"), ("2 ahead",)),
        ("cpu", ("NEXTN+NGRAM", "chunks", "radix"), ("2",)),
        ("cpu", ((2, 3, 8), "whole", "naive"), ("1 ahead",)),
        ("cpu", TREE, ("2",)),
    ],
    [
        ("cpu", (0, "chunks", "radix"), ("1 ahead", "2", "4")),
        ("cpu", (0, "whole", "retracted"), ("2", "4 ahead")),
        ("cpu", (2, "whole", "naive"), ("2 ahead", "4 ahead")),
        ("cpu", (3, "chunks", "retracted"), ("2", "4", "2 ahead")),
        ("cpu", ("auto", "chunks", "radix"), ("4",)),
        ("cpu", ("NEXTN+NGRAM", "whole", "naive"), ("2", "4")),
        ("cpu", ((2, 3, 8), "chunks", "radix"), ("2 ahead", "4 ahead")),
        ("cpu", TREE, ("1 ahead", "4")),
        ("reference", (2, "chunks", "radix"), ("2",)),
    ],
)

SHARED_EXPERTS = {
    "ep_size": 2, "ep_num_redundant_experts": 2, "enable_eplb": True, "eplb_rebalance_num_iterations": 3,
}  # fmt: skip

# Two ranks as on two machines, over sockets. Each has a part of every expert, or whole experts, which move.
ON_NODES = [(("auto", "chunks", "naive"), {}), (TREE, SHARED_EXPERTS)]

# In parts of it only one token is allowed. That token becomes the draft, without the drafter.
FORM = Constraint("regex", r'\{"name": "[a-z]{1,4}", "is": "(red|blue)", "size": [0-9]{1,9}\}')


def work(llm):
    """Four prompts greedily, the same four at T = 1, one with filters and penalties, one by a grammar; on
    plain torch some of these. For the last two, the native kernels call back for each draft; they end before
    the others, so that steps with and without such requests occur."""
    texts = heldout_prompts(4)
    prompts = [llm.tokenizer.encode(t)[:n] for t, n in zip(texts, (120, 60, 97, 80), strict=True)]
    backend = llm.engine.config.kernel_backend
    tokens = TOKENS[backend]
    greedy = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
    hot = [SamplingParams(max_tokens=tokens, temperature=1.0, seed=i, ignore_eos=True) for i in range(4)]
    fussy = SamplingParams(
        max_tokens=12,
        temperature=0.8,
        seed=9,
        top_k=40,
        top_p=0.9,
        min_p=0.02,
        repetition_penalty=1.2,
        frequency_penalty=0.3,
        presence_penalty=0.2,
        logit_bias={token: 3.0 - token % 7 for token in range(200, 260)},
        min_tokens=8,
    )
    formed = SamplingParams(max_tokens=12, temperature=0.9, seed=3, constraint=FORM)
    params = [greedy] * 4 + hot + [fussy, formed]
    for i, changes in ASKED.items():
        params[i] = params[i].replace(**changes)
    prompts = [*prompts, *prompts, prompts[0], prompts[1]]
    return [prompts[i] for i in ASKING[backend]], [params[i] for i in ASKING[backend]]


def request(llm, rid, prompt, params):
    grammar = None if params.constraint is None else llm.grammars.compile(params.constraint)
    return Request(rid, list(prompt), params, grammar=grammar)


def speculation(drafts):
    """Options. drafts: the depth of a chain, or a tree as (steps, topk, nodes with the root), or a name."""
    if drafts == "auto":
        return {"speculative_num_steps": "auto"}
    if drafts in ("NGRAM", "NEXTN+NGRAM"):
        return {"speculative_algorithm": drafts, "speculative_num_steps": 2}
    if isinstance(drafts, int):
        return {"speculative_num_steps": drafts}
    names = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")
    return dict(zip(names, drafts, strict=True))


def shown(done):
    return [(c.token_ids, c.logprobs, c.prompt_logprobs) for c in done]


def with_retractions(llm, prompts, params):
    """All at once in a small pool. Also, the last request is retracted every fifth step."""
    engine = llm.engine
    got = {str(i): Heard() for i in range(len(prompts))}
    for rid, prompt, p in zip(got, prompts, params, strict=True):
        engine.add(request(llm, rid, prompt, p))
    steps = 0
    while engine.has_work():
        for out in engine.step():
            got[out.rid].take(out)
        steps += 1
        scheduler = engine._scheduler
        if steps % 5 == 0 and len(scheduler.running) > 1:
            scheduler._retract(scheduler.running[-1])
            engine.check_integrity()
    return [heard.shown for heard in got.values()]


class Heard:
    """What an engine has returned for one request, in the form of `shown`."""

    def __init__(self):
        self.shown = ([], None, None)

    def take(self, out):
        tokens, logprobs, prompt = self.shown
        if out.logprobs is not None:
            logprobs = (logprobs or []) + out.logprobs
        assert prompt is None or out.prompt_logprobs is None
        self.shown = (tokens + out.tokens, logprobs, out.prompt_logprobs or prompt)


@pytest.fixture(scope="module", params=["cpu", "reference"])
def backend(request):
    """--kernel-backend."""
    if request.param == "cpu":
        try:
            library()
        except NoLibrary as e:
            pytest.skip(f"no native kernels: {e}")
    return request.param


@pytest.fixture
def plain(backend):
    return plainest(backend)


@functools.cache  # not a fixture of the module, because pytest would make that again for each combination
def plainest(backend):
    """One request at a time, no drafts, whole prompts, no prefix cache."""
    options = {"kernel_backend": backend, "threads": 1, "kv_cache_tokens": 512}
    llm = LLM(**options, speculative_num_steps=0, disable_radix_cache=True)
    prompts, params = work(llm)
    return [shown(llm.generate([p], s))[0] for p, s in zip(prompts, params, strict=True)]


@pytest.mark.parametrize("backend", ["cpu"], indirect=True)
def test_what_was_asked_for_is_told(plain):
    for i, (tokens, logprobs, prompt) in enumerate(plain):
        assert (logprobs is not None) == (i in ASKED)
        assert (prompt is not None) == (i == 2)
        assert logprobs is None or len(logprobs) == len(tokens)
    # Greedily, the token is the most likely one; with penalties it may not be.
    assert all(top[0] == (token, p) for token, (p, top) in zip(*plain[1][:2], strict=True))


@pytest.mark.parametrize(
    ("backend", "combination"),
    [("cpu", one) for one in HERE] + [("reference", one) for one in ON_PLAIN_TORCH],
    indirect=["backend"], ids=str,
)  # fmt: skip
def test_text_is_the_same(plain, backend, combination):
    drafts, chunk, cache = combination
    llm = LLM(
        kernel_backend=backend,
        threads=1,  # test_threads has others, and random arrivals
        check_integrity=True,
        **speculation(drafts),
        **CHUNKS[chunk],
        **CACHES[cache],
    )
    prompts, params = work(llm)
    if cache == "retracted":
        together = with_retractions(llm, prompts, params)
        assert llm.engine.stats().retracted > len(prompts) // 3
    else:
        together = shown(llm.generate(prompts, params))
    assert together == plain
    if drafts and drafts != "auto":  # "auto" may decide not to draft
        # In texts so short, n-grams find little.
        assert llm.engine.stats().spec.accept_length > (1.0 if isinstance(drafts, str) else 1.2)
    # One at a time, with the pages that are in the prefix cache now.
    some = sorted({*range(0, len(plain), 4), len(plain) - 1})
    alone = [shown(llm.generate([prompts[i]], params[i]))[0] for i in some]
    assert alone == [plain[i] for i in some]
    if cache == "radix":
        assert llm.engine.stats().cached_tokens > 0


def options_of(backend, combination):
    drafts, chunk, cache = combination
    more = {**speculation(drafts), **CHUNKS[chunk], **CACHES[cache]}
    return {"kernel_backend": backend, "threads": 1, "check_integrity": True, **more}


def computed(backend, combination, **options):
    """The answers to all of `work`, and the engine's statistics. Prompts are cut by tokens alone: if the
    times of steps counted too, schedules would differ, and with them retractions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "_prompts", lambda config, *_: PromptBudget(config.chunked_prefill_size))
        llm = LLM(**options_of(backend, combination), **options)
    prompts, params = work(llm)
    if combination[2] == "retracted":
        found = with_retractions(llm, prompts, params)
    else:
        found = shown(llm.generate(prompts, params))
    stats = llm.engine.stats()
    getattr(llm.engine._executor, "close", lambda: None)()
    return found, stats


@functools.cache
def drafted_by_one(backend, combination):
    """Acceptance and retractions of one rank whose steps are not planned ahead."""
    found, stats = computed(backend, combination, overlap_schedule="off")
    assert found == plainest(backend)
    assert stats.spec.accept_length > 1.2
    return stats.spec, stats.retracted


@pytest.mark.parametrize(("backend", "combination", "runs"), ELSEWHERE, indirect=["backend"], ids=str)
def test_elsewhere(plain, backend, combination, runs):
    """Ahead, and on several ranks, which compare their results after every step."""
    drafts, _, cache = combination
    for run in runs:
        ranks, *ahead = run.split()
        options = {"tp_size": int(ranks), "overlap_schedule": "on" if ahead else "off"}
        found, stats = computed(backend, combination, **options)
        assert found == plain
        if drafts not in (0, "auto") and not (ahead and cache == "retracted"):
            assert (stats.spec, stats.retracted) == drafted_by_one(backend, combination)


@pytest.mark.parametrize("backend", ["cpu"], indirect=True)  # sockets do not depend on the kernels
@pytest.mark.parametrize(("combination", "experts"), ON_NODES)
def test_on_two_nodes(plain, backend, combination, experts):
    options = {"tp_size": 2, "nnodes": 2, "dist_init_addr": free_address(), **experts}
    with ranks_of_other_nodes(engine_config(options_of(backend, combination) | options)):
        found, stats = computed(backend, combination, **options)
    assert found == plain
    if combination[0] != "auto":
        assert (stats.spec, stats.retracted) == drafted_by_one(backend, combination)


@pytest.mark.parametrize("backend", ["cpu"], indirect=True)  # a schedule does not depend on the kernels
@pytest.mark.parametrize("seed", few_or_all([1], [0, *range(2, 6)]))
def test_random_arrivals_and_departures(plain, backend, seed):
    """Requests come at random times in random order; others beside them are aborted midway. With odd seeds,
    two ranks run the steps."""
    rng = random.Random(seed)
    llm = LLM(
        kernel_backend=backend,
        **speculation(rng.choice([1, 2, 3, (3, 2, 6), (2, 4, 12)])),
        kv_cache_tokens=rng.choice([448, 1024]),
        check_integrity=True,
        chunked_prefill_size=rng.choice([24, 100]),
        max_running_requests=rng.choice([3, 8, 16]),
        page_size=rng.choice([1, 8, 16]),
        threads=rng.choice([1, 2, 3]),
        tp_size=1 + seed % 2,
    )
    prompts, params = work(llm)
    jobs = [(f"r{i}", p, s) for i, (p, s) in enumerate(zip(prompts, params, strict=True))]
    jobs += [(f"x{i}", prompts[i][:50], params[i]) for i in range(3)]
    rng.shuffle(jobs)
    got = {rid: Heard() for rid, _, _ in jobs}
    engine = llm.engine
    while jobs or engine.has_work():
        while jobs and (rng.random() < 0.3 or not engine.has_work()):
            rid, prompt, s = jobs.pop()
            engine.add(request(llm, rid, prompt, s))
        for out in engine.step():
            got[out.rid].take(out)
        if rng.random() < 0.1:
            engine.abort(f"x{rng.randrange(3)}")
    assert [got[f"r{i}"].shown for i in range(len(plain))] == plain
    engine.check_integrity()
    assert engine.stats().used_tokens == 0
    getattr(engine._executor, "close", lambda: None)()


@pytest.mark.parametrize("backend", ["cpu"], indirect=True)  # only the native kernels have 4 bits
def test_text_is_the_same_in_4_bits(backend):
    """--quantization w4a16: one text for all drafts and ranks."""
    options = {"kernel_backend": backend, "quantization": "w4a16", "threads": 1, "check_integrity": True}
    llm = LLM(**options, speculative_num_steps=0)
    prompts, params = (kind[2:7] for kind in work(llm))
    want = shown(llm.generate(prompts, params))
    llm = LLM(**options, **speculation((2, 3, 8)), **CHUNKS["chunks"], tp_size=2)
    assert shown(llm.generate(prompts, params)) == want
    assert llm.engine.stats().spec.accept_length > 1.2
    llm.engine._executor.close()


def test_across_a_block_of_keys(backend):
    """Attention adds up by blocks of 256 keys; here a block begins within drafts and chunks."""
    tokens = []
    options = {"kernel_backend": backend, "threads": 1, "kv_cache_tokens": 2048}
    llm = LLM(**options, speculative_num_steps=0, disable_radix_cache=True)
    for text in heldout_prompts(12):
        tokens += llm.tokenizer.encode(text)
    parts = ((300, 254),) if backend == "reference" else ((0, 251), (300, 254), (500, 507))
    prompts = [tokens[i : i + n] for i, n in parts]
    params = [
        SamplingParams(max_tokens=8, temperature=i % 2, seed=i, ignore_eos=True, logprobs=2)
        for i in range(len(prompts))
    ]
    alone = [shown(llm.generate([p], s))[0] for p, s in zip(prompts, params, strict=True)]
    for drafts in [(4, 3, 12)] if backend == "reference" else [3, (4, 3, 12)]:
        together = LLM(**options, chunked_prefill_size=96, max_running_requests=8, **speculation(drafts))
        assert shown(together.generate(prompts, params)) == alone


@pytest.mark.parametrize("backend", ["cpu"], indirect=True)
def test_page_size_and_seed(plain, backend):
    llm = LLM(kernel_backend=backend, threads=1, page_size=1, speculative_num_steps=2)
    prompts, params = work(llm)
    assert shown(llm.generate(prompts[4:6], params[4:6])) == plain[4:6]
    other = llm.generate(prompts[4:5], params[4].replace(seed=77))[0].token_ids
    assert other != plain[4][0]
    stream = llm.generate(prompts[4:5], params[4].replace(stream=1))[0].token_ids
    assert stream not in (plain[4][0], other)


@pytest.mark.parametrize(
    "backend", ["cpu"], indirect=True
)  # torch divides no product this small among threads
def test_threads(plain, backend):
    """Any number gives the same bits."""
    llm = LLM(kernel_backend=backend, threads=3)
    prompts, params = work(llm)
    assert shown(llm.generate(prompts, params)) == plain
