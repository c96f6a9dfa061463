"""How much of a step prompts may take."""

import pytest

from nextn.scheduler.prompt_budget import SCORED, SLOWER, WHILE, PromptBudget
from nextn.speculative.depth.cost import StepCost
from nextn.speculative.work import StepWork

DEAR_ROWS = StepCost(fixed=0.4e-3, row=0.2e-3)
CHEAP_ROWS = StepCost(fixed=5e-3, row=1e-6)
EXPERTS = StepCost(fixed=0.5e-3, row=0.05e-3, expert=0.1e-3, experts=(64, 4))


@pytest.mark.parametrize("cost", [DEAR_ROWS, EXPERTS])
@pytest.mark.parametrize("rows", [1, 3, 16])
def test_one_prompt_makes_a_step_so_much_slower_and_not_more(cost: StepCost, rows: int) -> None:
    found = PromptBudget(4096, cost=cost).share(rows, 1)
    assert cost.rows(rows + found) <= SLOWER * cost.rows(rows) < cost.rows(rows + found + 1)


def test_where_more_prompts_wait_than_requests_decode_all_have_as_much_of_the_time() -> None:
    budget = PromptBudget(4096, cost=DEAR_ROWS)
    few, many, more = (budget.share(8, prompts) for prompts in (1, 16, 24))
    assert few == many
    assert more == 3 * many // 2
    assert DEAR_ROWS.rows(8 + more) == pytest.approx(4 * DEAR_ROWS.rows(8), rel=0.02)


@pytest.mark.parametrize("prompts", [1, 24])
def test_log_probabilities_of_prompts_make_a_step_less_slow(prompts: int) -> None:
    budget = PromptBudget(4096, cost=DEAR_ROWS)
    found = budget.share(8, prompts, scored=True)
    assert DEAR_ROWS.rows(8 + found) <= SCORED * DEAR_ROWS.rows(8) < DEAR_ROWS.rows(8 + found + 1)
    assert budget.share(0, prompts, scored=True) == 4096 // 16  # others are expected
    assert PromptBudget(4096).share(0, prompts, scored=True) == 4096  # nobody else is here


@pytest.mark.parametrize("cost", [None, DEAR_ROWS])
def test_after_somebody_decoded_beside_prompts_their_steps_stay_short_for_a_while(
    cost: StepCost | None,
) -> None:
    budget = PromptBudget(2048, context=0.01, cost=cost)
    assert budget.share(0, 2) == budget.affordable(2048, 4000, None) == 2048
    budget.share(1, 2)
    for _ in range(WHILE - 1):
        assert budget.share(0, 2) == 256
        assert budget.affordable(256, 4000, None) < 10
    assert budget.share(0, 2) == budget.affordable(2048, 4000, None) == 2048


def test_where_rows_cost_little_and_where_many_wait_half_the_budget_is_theirs() -> None:
    assert PromptBudget(512, cost=CHEAP_ROWS).share(1, 1) == 256
    assert PromptBudget(512, cost=DEAR_ROWS).share(1, 640) == 256
    assert PromptBudget(512).share(1, 1) == 256


def test_a_prompt_always_gets_on() -> None:
    slow = StepCost(fixed=1e-6, row=1.0)
    budget = PromptBudget(512, cost=slow)
    for _ in range(99):
        budget.note(1, 2, StepWork(3, requests=1), 60.0)
    assert budget.share(1, 0) == 1
    assert PromptBudget(1, cost=slow).share(1, 1) == 1
    assert PromptBudget(8, score=100.0).affordable(1, 0, 0) == 0  # the scheduler grants one all the same


def test_what_is_affordable_is_what_is_taken() -> None:
    budget = PromptBudget(512, score=0.7, context=0.01)
    budget.share(1, 1)  # others wait, so attention counts
    for start in (0, 100, 3000):
        for unscored in (None, 0):
            n = budget.affordable(200, start, unscored)
            scores = 0 if unscored is None else n
            assert budget.taken(start, n, scores) <= 201
            assert budget.taken(start, n + 2, scores and n + 2) > 200


def test_what_steps_take_makes_up_for_costs_that_leave_something_out() -> None:
    """Here the host's work makes a step twice as long as the rows say, and attention one with prompts by a
    half."""
    budget = PromptBudget(4096, cost=DEAR_ROWS)
    for _ in range(100):
        budget.note(2, 0, StepWork(2, requests=2), 2.0 * DEAR_ROWS.rows(2))
        found = budget.share(2, 1)
        budget.note(2, found, StepWork(2 + found, requests=2), 1.5 * DEAR_ROWS.rows(2, found))
    usual = 2.0 * DEAR_ROWS.rows(2)
    assert 1.5 * DEAR_ROWS.rows(2, found) == pytest.approx(SLOWER * usual, rel=0.1)


def test_drafts_are_a_part_of_what_steps_take() -> None:
    """Steps with drafts take longer, so prompts may, too; when drafts end, at once no more."""
    cost = StepCost(fixed=0.4e-3, row=0.2e-3, a_pass=1e-3)
    drafts, none = StepWork(6, 4, requests=2, drafts=4), StepWork(2, requests=2)
    budget = PromptBudget(4096, cost=cost)
    before = budget.share(2, 1)
    budget.note(2, 0, drafts, cost.rows(2) + cost.extra(drafts))
    found = budget.share(2, 1)
    assert cost.rows(2, found) + cost.extra(drafts) == pytest.approx(
        SLOWER * (cost.rows(2) + cost.extra(drafts)), rel=0.05
    )
    budget.note(2, 0, none, cost.rows(2))
    assert budget.share(2, 1) == before < found / 2


def test_a_step_that_was_held_up_does_not_decide() -> None:
    budget = PromptBudget(4096, cost=DEAR_ROWS)
    before = budget.share(4, 1)
    budget.note(4, before, StepWork(4 + before, requests=4), 60.0)
    assert before / 2 < budget.share(4, 1) <= before
    budget.note(0, 300, StepWork(300), 60.0)  # nobody decodes: nobody waits
    assert before / 2 < budget.share(4, 1) <= before
