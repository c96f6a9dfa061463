"""Plans that are made before the result of the last one is committed."""

import pytest
from support.scripted_executor import drain, expected, make, request

from nextn.draft import DRAFT_WINDOW


class Depth:
    """Automatic depth that does as it is told."""

    keeping, cutoff, state, num_steps = True, None, None, 2

    def __init__(self, drafting=True):
        self.drafting, self.heard = drafting, []

    def note(self, draft, accepted):
        pass

    def stepped(self, work, seconds, own, drafting):
        self.heard.append(drafting)


def plan_and_run(sched, ex):
    plan = sched.plan()
    return plan, ex.run(plan)


def decoding(prompts, pages=40, **options):
    """An engine whose requests have read their prompts, and the step after that under way."""
    sched, ex = make(pages=pages, budget=64, **options)
    for i, prompt in enumerate(prompts):
        sched.add(request(str(i), prompt, i, 160, max_tokens=40, ignore_eos=True))
    sched.commit(*plan_and_run(sched, ex))
    return sched, ex, plan_and_run(sched, ex)


def drained(sched, ex, *launched):
    """The rest of every text."""
    found = {}
    for each in launched:
        for out in sched.commit(*each):
            found.setdefault(out.rid, []).extend(out.tokens)
        sched.check_integrity()
    for rid, tokens in drain(sched, ex)[0].items():
        found.setdefault(rid, []).extend(tokens)
    return found


def test_the_next_span_has_bounds_until_the_last_is_committed():
    sched, ex, first = decoding([[5]], skill=1.0)
    [last] = first[0].spans
    second = plan_and_run(sched, ex)
    [span] = second[0].spans
    assert span.ahead
    assert span.known == 1
    assert span.start == last.start + 1 + len(last.draft) == last.start + 3
    assert span.most_drafts == 2
    sched.commit(*first)
    assert span.start == sched.by_rid["0"].committed
    assert list(span.draft.tokens) == list(sched.by_rid["0"].draft.tokens)
    # The first step of all was the prompt's, and chose one token; these came in two more.
    assert drained(sched, ex, second)["0"] == expected([5], 40, 160, True)[4:]


def test_two_steps_may_be_under_way_and_no_more():
    sched, ex, first = decoding([[5]])
    second = plan_and_run(sched, ex)
    assert second[0].spans
    assert not sched.plan().spans
    sched.commit(*first)
    assert sched.plan().spans


def test_parts_of_a_prompt_follow_each_other():
    sched, ex = make(pages=60, budget=16)
    prompt = [1 + i % 20 for i in range(50)]
    sched.add(request("a", prompt, 0, 160, max_tokens=5, prompt_logprobs=0, ignore_eos=True))
    first = plan_and_run(sched, ex)
    second = plan_and_run(sched, ex)
    [a], [b] = first[0].spans, second[0].spans
    assert (a.start, a.known, b.start, b.known) == (0, 16, 16, 16)
    assert (a.scores, b.scores) == (range(16), range(16))
    assert not b.ahead
    assert drained(sched, ex, first, second) == {"a": expected(prompt, 5, 160, True)}
    assert sorted(ex.scored) == list(range(49))


def test_a_request_that_surely_ends_is_not_planned_ahead():
    sched, ex = make()
    sched.add(request("a", [5, 6], 0, 160, max_tokens=1))
    sched.add(request("b", [5, 7], 1, 160, max_tokens=2, ignore_eos=True))
    plan_and_run(sched, ex)
    assert [span.rid for span in sched.plan().spans] == ["b"]


def test_one_that_ended_in_the_step_before_has_no_rows():
    # Alone, this prompt's text ends after some tokens; so many steps are launched one ahead.
    prompt = next([n, 3] for n in range(1, 20) if 4 < len(expected([n, 3], 40, 160)) < 40)
    sched, ex = make(drafts=0)
    sched.add(request("a", prompt, 0, 160, max_tokens=40))
    launched, found, ran = plan_and_run(sched, ex), [], []
    while sched.has_work():
        following = plan_and_run(sched, ex)
        ran.append(following[1].spans[0].tokens)
        found += [t for out in sched.commit(*launched) for t in out.tokens]
        sched.check_integrity()
        launched = following
    assert found == expected(prompt, 40, 160)
    assert ran[-1] == []  # and the request's own state says so, not the scheduler
    assert sched.commit(*launched) == []
    assert ex.states == {}


def test_pages_that_run_out_wait_for_what_is_under_way():
    prompts = [[5, 6, 7], [6, 7, 8], [7, 8, 9]]
    sched, ex = make(pages=24, page_size=2, budget=64, drafts=3, skill=1.0)
    for i, prompt in enumerate(prompts):
        sched.add(request(str(i), prompt, i, 40, max_tokens=35, ignore_eos=True))
    texts, launched, waited = {}, None, 0
    while sched.has_work():
        launched = launched or plan_and_run(sched, ex)
        retracted = sched.stats.retracted
        following = plan_and_run(sched, ex)
        assert sched.stats.retracted == retracted, "pages are taken from what is under way"
        short = sched._under_way.short
        waited += short and not following[0].spans
        for out in sched.commit(*launched):
            texts.setdefault(out.rid, []).extend(out.tokens)
        sched.check_integrity()
        launched = following if following[0].spans else None
    assert texts == {str(i): expected(p, 35, 40, True) for i, p in enumerate(prompts)}
    assert sched.stats.retracted
    assert sched.kv.available == 24


@pytest.mark.parametrize("drafting", [False, True])
def test_the_drafter_begins_and_ends_when_nothing_is_under_way(drafting):
    depth = Depth(not drafting)
    sched, ex, first = decoding([[5], [6]], auto=depth)
    depth.drafting = drafting
    assert not sched.plan().spans
    texts = drained(sched, ex, first)
    assert texts["0"][-1] == expected([5], 40, 160, True)[-1]
    assert depth.heard[:2] == [not drafting] * 2  # as it was when they were planned
    assert set(depth.heard[2:]) == {drafting}


def test_keeping_begins_when_nothing_is_under_way():
    depth = Depth(False)
    depth.keeping = False
    sched, _, first = decoding([[5] * 30], pages=60, auto=depth)
    depth.keeping = True
    assert not sched.plan().spans
    sched.commit(*first)
    plan = sched.plan()
    assert plan.keep
    req = sched.by_rid["0"]
    assert req.draft_from >= req.committed > DRAFT_WINDOW / 4


def test_an_aborted_request_and_another_of_its_name():
    sched, ex, first = decoding([[5], [6]])
    second = plan_and_run(sched, ex)
    assert sched.abort("0")
    sched.add(request("0", [9, 9, 9], 7, 160, max_tokens=10, ignore_eos=True))
    assert not [out for out in sched.commit(*first) if out.rid == "0"]
    third = plan_and_run(sched, ex)
    spans = {span.rid: span for span in third[0].spans}
    assert (spans["0"].start, spans["0"].ahead, spans["1"].ahead) == (0, False, True)
    texts = drained(sched, ex, second, third)
    assert texts["0"] == expected([9, 9, 9], 10, 160, True)


def test_a_retracted_request_computes_again_what_was_under_way():
    sched, ex, first = decoding([[5], [6]])
    second = plan_and_run(sched, ex)
    sched._retract(sched.running[-1])
    outputs = [*sched.commit(*first), *sched.commit(*second)]
    assert {out.rid for out in outputs} == {"0"}
    assert drained(sched, ex)["1"] == expected([6], 40, 160, True)[1:]
