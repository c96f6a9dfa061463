"""The identity matrix: on the embedded model, the text never depends on how it was computed. Nor do the
log-probabilities, which some of the requests ask for: each depends on all logits of its position.

Native kernels (bf16) or plain torch (f32); MTP off or 1, 2, 3 drafts in a chain, as many as pay, n-grams, or
trees; prompts whole or in chunks of 16 tokens; radix cache, none, or a pool so small that requests are
retracted; one request at a time or all at once; T = 0 and seeded T = 1. Every combination must give the token
ids and log-probabilities of the plainest one on the same kernels, to the bit. Each kind of drafts is tried
with chunks and without, or with another kind that has the rest; so are the caches. Some are tried where
several ranks run the steps, or each step is planned ahead (`ELSEWHERE`); as many drafts hold there. On plain
torch there is one. `make test-all` has more.
"""

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

# A cache that is so small that requests are retracted is a radix cache, too. Chains of 1 and 3 are no other
# kind than one of 2, and one tree none than the other.
HERE = few_or_all(
    [
        (1, "chunks", "retracted"),
        ("auto", "chunks", "radix"),
        ("NGRAM", "whole", "radix"),
        ("NEXTN+NGRAM", "chunks", "retracted"),
        ((4, 2, 7), "chunks", "radix"),
    ],
    [
        (0, "chunks", "naive"),
        (3, "whole", "naive"),
        ("auto", "whole", "naive"),
        ("NGRAM", "chunks", "retracted"),
    ],
)

# Who is scheduled and what is cached does not depend on the kernels.
ON_PLAIN_TORCH = [((2, 3, 8), "whole", "retracted")]

# So many ranks run the steps. Ahead: each step is planned before the result of the last one is read, here in
# a thread. Nearly every kind of drafts goes to ranks, and ahead. Where there are two runs, drafts are kept
# alike. What crosses to ranks does not depend on the kernels.
ELSEWHERE = few_or_all(
    [
        ("cpu", (0, "chunks", "radix"), ("1 ahead",)),
        ("cpu", (2, "chunks", "radix"), ("1", "1 ahead")),
        ("cpu", ("auto", "whole", "retracted"), ("2 ahead",)),
        ("cpu", ("NEXTN+NGRAM", "chunks", "radix"), ("1", "2")),
        ("cpu", ((2, 3, 8), "whole", "naive"), ("1 ahead",)),
        ("cpu", ((4, 2, 7), "chunks", "retracted"), ("2",)),
    ],
    [
        ("cpu", (2, "chunks", "radix"), ("1", "2")),
        ("cpu", ("NEXTN+NGRAM", "whole", "naive"), ("1", "2")),
        ("cpu", ((4, 2, 7), "chunks", "retracted"), ("1", "4")),  # on two cores, they take turns
        ("reference", (2, "chunks", "radix"), ("1", "2")),
    ],
)

SHARED_EXPERTS = {
    "ep_size": 2, "ep_num_redundant_experts": 2, "enable_eplb": True, "eplb_rebalance_num_iterations": 3,
}  # fmt: skip

# Two ranks as on two machines, over sockets, each with a part of every expert or with whole ones, which move.
ON_NODES = [
    ("auto", "chunks", "naive", {}),
    ((2, 3, 8), "whole", "retracted", SHARED_EXPERTS),
]  # fmt: skip

# Parts of it leave one way to go on, which is drafted without the drafter.
FORM = Constraint("regex", r'\{"name": "[a-z]{1,4}", "is": "(red|blue)", "size": [0-9]{1,9}\}')


def work(llm):
    """Four prompts greedily, the same four at T = 1, one with filters and penalties, one by a grammar; on
    plain torch some of these. The last two end before the others: for the guesses of such requests, and of no
    others, the native kernels ask."""
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
    """A chain so deep, or a tree of (steps, topk, nodes and root)."""
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
    """All at once in a small pool; besides, every fifth step the last in order has to go."""
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
    """What an engine said of one request."""

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


@pytest.fixture(scope="module")
def plain(backend):
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
    if drafts and drafts != "auto":  # whether that one drafts is a matter of speed
        # N-grams find little in texts so short.
        assert llm.engine.stats().spec.accept_length > (1.0 if isinstance(drafts, str) else 1.2)
    # One at a time, on whatever the first pass left in the prefix cache.
    some = sorted({*range(0, len(plain), 4), len(plain) - 1})
    alone = [shown(llm.generate([prompts[i]], params[i]))[0] for i in some]
    assert alone == [plain[i] for i in some]
    if cache == "radix":
        assert llm.engine.stats().cached_tokens > 0


def computed(backend, combination, **options):
    """The answers to all of `work` and the engine's statistics. What steps take would make schedules differ,
    and with them retractions, so prompts are cut by tokens alone."""
    drafts, chunk, cache = combination
    options |= {**speculation(drafts), **CHUNKS[chunk], **CACHES[cache]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "_prompts", lambda config, *_: PromptBudget(config.chunked_prefill_size))
        llm = LLM(kernel_backend=backend, check_integrity=True, threads=1, **options)
    prompts, params = work(llm)
    if cache == "retracted":
        found = with_retractions(llm, prompts, params)
    else:
        found = shown(llm.generate(prompts, params))
    stats = llm.engine.stats()
    getattr(llm.engine._executor, "close", lambda: None)()
    return found, stats


@pytest.mark.parametrize(("backend", "combination", "runs"), ELSEWHERE, indirect=["backend"], ids=str)
def test_elsewhere(plain, backend, combination, runs):
    """Ahead, and on several ranks, which compare what they found after every step: texts and acceptance are
    those of one rank whose steps are not planned ahead."""
    kept = []
    for run in runs:
        ranks, *ahead = run.split()
        options = {"tp_size": int(ranks), "overlap_schedule": "on" if ahead else "off"}
        found, stats = computed(backend, combination, **options)
        assert found == plain
        kept.append((stats.spec, stats.retracted))
    assert all(others == kept[0] for others in kept)


# Sockets, and which drafts there are, do not depend on the kernels.
@pytest.mark.parametrize("backend", ["cpu"], indirect=True)
@pytest.mark.parametrize(("drafts", "chunk", "cache", "experts"), ON_NODES)
def test_on_two_nodes(plain, backend, drafts, chunk, cache, experts, monkeypatch):
    monkeypatch.setattr(build, "_prompts", lambda config, *_: PromptBudget(config.chunked_prefill_size))
    options = {
        **speculation(drafts), **CHUNKS[chunk], **CACHES[cache], "kernel_backend": backend, "threads": 1,
        "check_integrity": True, "tp_size": 2, "nnodes": 2, "dist_init_addr": free_address(),
        **experts,
    }  # fmt: skip
    run = with_retractions if cache == "retracted" else lambda *work: shown(work[0].generate(*work[1:]))
    with ranks_of_other_nodes(engine_config(options)):
        llm = LLM(**options)
        assert run(llm, *work(llm)) == plain
        llm.engine._executor.close()


@pytest.mark.parametrize("backend", ["cpu"], indirect=True)  # a schedule does not depend on the kernels
@pytest.mark.parametrize("seed", few_or_all([1], [0, *range(2, 6)]))
def test_random_arrivals_and_departures(plain, backend, seed):
    """Requests come at random times in random order; some neighbours are aborted midway."""
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
    """Attention adds up by blocks of 256 keys; here one begins amid drafts and chunks."""
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


@pytest.mark.parametrize("backend", ["cpu"], indirect=True)  # torch's threads share out no product this small
def test_threads(plain, backend):
    """Any number gives the same bits."""
    llm = LLM(kernel_backend=backend, threads=3)
    prompts, params = work(llm)
    assert shown(llm.generate(prompts, params)) == plain
