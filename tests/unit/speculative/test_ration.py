"""What may be spent on trials: how much is put aside, and what takes none of it away."""

from nextn.speculative.ration import Ration


def saved(*, steps):
    ration = Ration(share=0.01, plan=1e-4, each=1e-5, stretch=20, trial=5)
    for _ in range(steps):
        ration.step(0.02)
    return ration


def test_a_purse_has_an_end():
    ration = saved(steps=100_000)
    assert 0.95 * 64 * 0.02 < ration.purse <= 64 * 0.02 * (1 + 1e-9)
    assert ration.within_reach(ration.purse)
    assert not ration.within_reach(2 * ration.purse)


def test_one_short_step_takes_nothing_out_of_it():
    ration = saved(steps=2000)
    before = ration.purse
    ration.step(1e-4)
    assert ration.purse >= before > 64 * 1e-4


def test_a_plan_is_due_when_it_is_paid_for_and_a_trial_ends_anyway():
    ration = saved(steps=1)
    assert ration.due(21, False, 8, 8)
    assert not ration.due(20, False, 8, 9)
    assert ration.due(1, False, 8, 10)  # another batch
    assert ration.due(1, False, 0, 1)
    ration.think(8)
    assert not ration.due(21, False, 8, 10)
    assert ration.due(6, True, 8, 8)
    assert not ration.due(5, True, 8, 8)
