"""Speeds, agreement and acceptance, against traces worked out by hand."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.usefixtures("peers")


def reply(seconds: float, *lengths: int):
    from protocol import Reply

    return Reply(seconds, [[7] * n for n in lengths])


def test_prefill_speed_is_over_all_prompts() -> None:
    from figures import prefill_speed

    assert prefill_speed(512, [reply(0.5, 1), reply(1.5, 1)]) == 512.0


def test_decode_speed_leaves_the_prompts_time_out() -> None:
    from figures import decode_speed

    # Two calls of two texts: 0.2 s each for the prompts and first tokens, 9 further tokens each in 1.8 s.
    first = [reply(0.2, 1, 1), reply(0.2, 1, 1)]
    full = [reply(2.0, 10, 10), reply(2.0, 10, 10)]
    assert decode_speed(first, full) == pytest.approx(36 / 3.6)


def test_decode_speed_of_a_disturbed_machine_is_refused() -> None:
    from figures import decode_speed

    with pytest.raises(ValueError, match="not idle"):
        decode_speed([reply(2.0, 1)], [reply(1.9, 10)])


@pytest.mark.parametrize(
    ("want", "got", "same"),
    [([1, 2, 3], [1, 2, 3], 3), ([1, 2, 3], [1, 2, 4], 2), ([1], [2], 0), ([1, 2], [1], 1), ([], [1], 0)],
)
def test_leading(want: list[int], got: list[int], same: int) -> None:
    from figures import leading

    assert leading(want, got) == same


def test_agreement_is_counted_up_to_the_references_end() -> None:
    from figures import agreement

    end = frozenset({1})
    reference = [[5, 6, 7, 8], [5, 1, 9, 9], [1, 5, 5, 5], [5, 6, 7, 8]]
    texts = [[5, 6, 7, 8], [5, 4, 4, 4], [9, 9, 9, 9], [5, 6, 9, 8]]
    found = agreement(reference, texts, end)
    assert found.prompts == 3  # the third has nothing before its end
    assert found.equal == pytest.approx(2 / 3)
    assert found.tokens == pytest.approx((4 + 1 + 2) / (4 + 1 + 4))


def test_a_peer_is_comparable_while_most_prompts_begin_alike() -> None:
    from figures import agreement

    want = [list(range(10, 30))] * 4
    late = [[*range(10, 18), *([0] * 12)]] * 2  # parts after eight tokens
    early = [[*range(10, 17), *([0] * 13)]] * 2  # after seven
    found = agreement(want, late + early, frozenset())
    assert (found.equal, found.equal_first, found.comparable) == (0.0, 0.5, True)
    assert not agreement(want, late[:1] + early + early[:1], frozenset()).comparable


def test_agreement_needs_a_text() -> None:
    from figures import agreement

    with pytest.raises(ValueError, match="nothing to compare"):
        agreement([[1]], [[1]], frozenset({1}))


def test_specs_add_up_over_depths() -> None:
    from figures import added
    from protocol import Spec

    assert added([]) is None
    assert added([None, None]) is None
    assert added([Spec([4], [3]), None, Spec([5, 2], [1, 1])]) == Spec([9, 2], [4, 1])
    assert added([Spec([4], [3], by_depth=False), Spec([1], [1])]) == Spec([5], [4], by_depth=False)


def test_acceptance_agrees_within_its_error() -> None:
    from figures import compare_acceptance
    from protocol import Spec

    (one, two) = compare_acceptance(Spec([400, 300], [360, 150]), Spec([400, 300], [350, 240]))
    # Pooled 0.8875: sqrt(0.8875 * 0.1125 * 2 / 400) = 0.02234.
    assert (one.depth, one.ours, one.theirs) == (1, 0.9, 0.875)
    assert one.error == pytest.approx(0.02234, abs=1e-5)
    assert one.agrees
    assert (two.ours, two.theirs, two.agrees) == (0.5, 0.8, False)


def test_acceptance_of_an_engine_that_adds_depths_up_is_not_compared() -> None:
    from figures import compare_acceptance
    from protocol import Spec

    assert compare_acceptance(Spec([4], [3]), Spec([4], [3], by_depth=False)) == []
    assert compare_acceptance(Spec([0], [0]), Spec([4], [3])) == []


def test_best_against_best() -> None:
    from figures import best

    speeds = {"nextn:float32": 50.0, "nextn:bfloat16": 80.0, "vllm": 40.0, "llamacpp": 160.0}
    ours = {name: name.startswith("nextn") for name in speeds}
    found = best(speeds, ours)
    assert found is not None
    assert (found.ours, found.peer, found.ratio) == ("nextn:bfloat16", "llamacpp", 0.5)
    assert best({"nextn": 1.0}, {"nextn": True}) is None
    assert best({"vllm": 1.0}, {"vllm": False}) is None


def test_busy_share_of_two_readings() -> None:
    from machine_state import busy_share

    #                user nice system idle iowait irq softirq steal guest
    before = "cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 1 1 1 1\n"
    assert busy_share(before, "cpu  110 0 110 960 20 0 0 0 0 0\n") == pytest.approx(0.1)
    assert busy_share(before, "cpu  150 0 150 800 0 0 0 0 0 0\n") == 1.0
    assert busy_share(before, before) == 0.0


def test_nothing_is_waited_for_when_told_so() -> None:
    from machine_state import wait_until_idle

    assert wait_until_idle(0) is False


def test_free_share(tmp_path) -> None:
    from machine_state import free_share

    file = tmp_path / "meminfo"
    file.write_text("MemTotal:       1000 kB\nMemFree: 10 kB\nMemAvailable:    250 kB\n")
    assert free_share(file) == 0.25
    assert free_share(tmp_path / "none") == 0.0
