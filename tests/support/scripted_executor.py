"""A scripted executor for tests of the scheduler: the next token is a hash of all tokens before it.

It records the content of every KV slot, so that a wrong page, an overlap or a stale slot is found as a wrong
read.
"""

import pickle
import random
from array import array
from itertools import pairwise

from nextn.draft import DRAFT_WINDOW, NO_DRAFT, Shape
from nextn.kvcache.manager import KVManager
from nextn.kvcache.naive import NaiveCache
from nextn.kvcache.radix import RadixCache
from nextn.request import Request, SamplingParams, TokenLogprob
from nextn.scheduler.plan import SpanResult, StepResult
from nextn.scheduler.prompt_budget import PromptBudget
from nextn.scheduler.scheduler import Scheduler
from nextn.speculative.tree import Growing
from nextn.speculative.verify.exact import accepted_path
from nextn.speculative.work import StepWork

VOCAB, EOS = 23, 0
CHAINS = Shape()


def script(tokens):
    h = 17
    for t in tokens:
        h = (h * 31 + t + 1) % 1_000_003
    return h % VOCAB


def expected(prompt, max_tokens, limit, ignore_eos=False):
    tokens = list(prompt)
    while len(tokens) < min(len(prompt) + max_tokens, limit):
        t = script(tokens)
        if t == EOS and not ignore_eos:
            break
        tokens.append(t)
    return tokens[len(prompt) :]


def score(position):
    return TokenLogprob(-float(position), [])


class Executor:
    """Answers plans, which it gets through pickle. slots[s] is the token whose KV is in slot s. entries[s] is
    the draft layer's entry there: the token and the one after it. kept: by request, entries for later, until
    the request extends."""

    def __init__(self, page_size, skill, seed=0, shape=CHAINS):
        self.page_size, self.skill, self.shape = page_size, skill, shape
        self.slots, self.entries, self.kept, self.states = {}, {}, {}, {}
        self.random = random.Random(seed)
        self.largest = 0
        self.computed, self.scored = {}, []  # number of tokens by request; positions of scores

    def add(self, state):
        assert state.rid not in self.states
        self.states[state.rid] = pickle.loads(pickle.dumps(state))

    def drop(self, rid):
        del self.states[rid]
        self.kept.pop(rid, None)

    def run(self, plan):
        plan = pickle.loads(pickle.dumps(plan))
        self.keep = plan.keep
        if not self.keep:
            self.kept.clear()
        assert len({s.rid for s in plan.spans}) == len(plan.spans)
        self.largest = max(self.largest, sum(s.known + len(s.draft) for s in plan.spans))
        written = set()
        results = []
        for span in plan.spans:
            r = self.states[span.rid]
            if span.ahead and r.ended:
                results.append(SpanResult([], NO_DRAFT))
                continue
            for name in ("start", "known", "draft", "chooses", "num_steps", "scores", "extend", "draft_from"):
                setattr(r, name, getattr(span, name))
            if span.ahead:
                r.go_on(span.most_drafts)
                assert r.start <= span.start
                assert r.start + r.known + r.draft.depth <= span.start + 1 + span.most_drafts
            r.tokens = [*r.history[r.start : r.start + r.known], *r.draft.tokens]
            assert span.first_page <= len(r.pages)
            r.pages[span.first_page :] = array("i", span.pages)
            table = [p * self.page_size + i for p in r.pages for i in range(self.page_size)]
            assert len(set(table)) == len(table)
            assert min(r.pages) > 0
            for i, t in enumerate(r.tokens):
                slot = table[r.start + i]
                assert slot not in written, "two spans write one slot"
                written.add(slot)
                self.slots[slot] = t
            seen = [self.slots.get(s) for s in table[: r.start + len(r.tokens)]]
            known = r.known
            self.computed[r.rid] = self.computed.get(r.rid, 0) + known
            self.scored += [r.start + i for i in r.scores]
            scores = [score(r.start + i) for i in r.scores]
            assert seen[: r.start + known] == list(r.history[: r.start + known]), (
                "the cache holds other tokens"
            )
            if not r.chooses:
                self.extend(r, table, [*r.tokens, r.following])
                results.append(SpanResult([], NO_DRAFT, prompt_logprobs=scores))
                continue
            assert r.start + known == len(r.history)
            assert r.draft.depth < max(1, r.room)
            assert list(r.tokens[known:]) == list(r.draft.tokens)
            above = [[r.draft.tokens[i] for i in r.draft.path(n)] for n in range(-1, len(r.draft))]
            choices = [script([*r.history, *tokens]) for tokens in above]
            path = accepted_path(r.draft, choices)
            new = [choices[0], *(choices[n + 1] for n in path)]
            # Accepted entries move to their positions. Then the drafter writes after them.
            moved = [self.slots[table[r.start + 1 + n]] for n in path]
            for depth, token in enumerate(moved, start=1):
                self.slots[table[r.start + depth]] = token
            want = max(0, min(r.num_steps, r.room - len(new) - 1))
            self.extend(r, table, [*r.tokens[:known], *new])
            assert r.extend or not want
            free = r.start + known + len(path)
            assert free + self.shape.scratch(want) <= len(table)
            for slot in table[free : free + self.shape.scratch(want)]:
                self.slots[slot] = self.entries[slot] = "guess"
            draft = self.draft([*r.history, *new], want)
            results.append(SpanResult(new, draft, prompt_logprobs=scores))
            r.commit(results[-1])
        work = StepWork(len(written), sum(s.extend for s in plan.spans))
        return StepResult(results, work)

    def extend(self, r, table, tokens):
        """Gives the draft layer `tokens` from position r.start on; the last one gets no entry. If the span
        extends, they get entries, and no entry before them may be missing. Otherwise they are kept for later,
        or dropped."""
        if not (r.extend or self.keep):
            return
        kept = self.kept.pop(r.rid, [])
        kept += [(r.start + i, pair) for i, pair in enumerate(pairwise(tokens))]
        kept = kept[-max(DRAFT_WINDOW, self.page_size) - len(tokens) :]
        if not r.extend:
            self.kept[r.rid] = kept
            return
        for position, pair in kept:
            if position < r.draft_from:
                continue
            self.entries[table[position]] = pair
        text = [*r.history[: r.start], *tokens]
        seen = [self.entries.get(slot) for slot in table[r.draft_from : len(text) - 1]]
        assert seen == list(pairwise(text))[r.draft_from :], "the draft layer's cache has a gap"

    def draft(self, text, want):
        """The script's token is the best guess with probability `skill`, else the last one."""
        tree = Growing(self.shape.topk)
        for _ in range(want):
            children = []
            for node in tree.frontier:
                t = script([*text, *tree.path(node)])
                guesses = [(t + i) % VOCAB for i in range(self.shape.topk)]
                if self.random.random() > self.skill:
                    guesses = guesses[::-1] if len(guesses) > 1 else [(t + 1) % VOCAB]
                children.append([(g, -1.0 - i) for i, g in enumerate(guesses)])
            tree.grow(children)
        return tree.best(self.shape.size(want)) if want else NO_DRAFT


def make(
    pages=40, page_size=4, budget=32, running=4, drafts=2, radix=True, skill=0.7, shape=CHAINS, auto=None,
    **costs,
):  # fmt: skip
    cache = RadixCache(page_size) if radix else NaiveCache()
    kv = KVManager(pages + 1, page_size, cache)
    executor = Executor(page_size, skill, shape=shape)
    sched = Scheduler(
        kv,
        executor,
        prompts=PromptBudget(budget, **costs),
        max_running=running,
        num_steps=drafts,
        eos_ids=frozenset({EOS}),
        shape=shape,
        auto=auto,
    )
    return sched, executor


def request(rid, prompt, order, limit, group=None, **params):
    p = SamplingParams(**params)
    r = Request(rid, list(prompt), p, group=group, num_prompt=len(prompt), order=order)
    r.limit = min(len(prompt) + p.max_tokens, limit)
    return r


def drain(sched, executor, check=True):
    got, reasons = {}, {}
    steps = 0
    while sched.has_work():
        plan = sched.plan()
        assert plan.spans, "work, but nothing planned"
        if check:
            sched.check_integrity()
        for out in sched.commit(plan, executor.run(plan)):
            got.setdefault(out.rid, []).extend(out.tokens)
            assert len(out.drafted) == len(out.tokens)
            if out.finish_reason:
                reasons[out.rid] = out.finish_reason
        if check:
            sched.check_integrity()
        steps += 1
        assert steps < 5000
    return got, reasons, steps
