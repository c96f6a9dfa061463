from nextn.bench.completion import Completion, Step


def test_steps_of_a_choice() -> None:
    choice = {
        "draft_depths": [["a", 0], ["b", 1], ["c", 0], ["d", 0]],
        "draft_steps": [
            {"tokens": 1, "drafts": [], "accepted": []},
            {"tokens": 2, "drafts": ["b", "x"], "accepted": [0]},
            {"tokens": 1, "drafts": ["p", "q", "r"], "accepted": [], "parents": [-1, -1, 0]},
        ],
    }
    made = Completion.of("prompt", choice)
    assert made.steps == [
        Step([("a", 0)], []),
        Step([("b", 1), ("c", 0)], [("x", 2)]),
        Step([("d", 0)], [("p", 1), ("q", 1), ("r", 2)]),
    ]
    assert made.tokens == [("a", 0), ("b", 1), ("c", 0), ("d", 0)]
