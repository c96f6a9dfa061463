"""What `nextn-tiny` is shipped for: drafts that hold, on text it never saw, and not by running in circles.

The bounds are the recipe's targets; recipes/tiny/README.md has the results they are held against. A part of
its prompts is enough here.
"""

import ast

import pytest

from nextn.bench.prompts import heldout_prompts
from nextn.llm import LLM
from nextn.request import SamplingParams

PROMPTS = 16


def run(drafts, temperature):
    llm = LLM(speculative_num_steps=drafts, threads=1)
    params = [
        SamplingParams(max_tokens=128, temperature=temperature, seed=i, ignore_eos=True)
        for i in range(PROMPTS)
    ]
    done = llm.generate(heldout_prompts(PROMPTS), params)
    return done, sum(c.spec.accept_length for c in done) / len(done)


def loops(tokens):
    """Do the last 32 tokens repeat a phrase of at most 12?"""
    end = tokens[-32:]
    return any(all(end[i] == end[i - period] for i in range(period, 32)) for period in range(1, 13))


def parses(text):
    """Is some beginning of at least three lines Python?"""
    lines = text.splitlines()
    for n in range(len(lines), 2, -1):
        try:
            ast.parse("\n".join(lines[:n]))
        except SyntaxError:
            continue
        return True
    return False


def test_greedy_two_drafts_and_few_loops():
    done, accept_length = run(2, 0.0)
    assert accept_length >= 2.3
    assert sum(loops(c.token_ids) for c in done) <= len(done) / 4


@pytest.mark.parametrize(("drafts", "temperature", "least"), [(3, 0.0, 2.6), (2, 0.7, 1.9)])
def test_accept_length(drafts, temperature, least):
    assert run(drafts, temperature)[1] >= least


def test_completions_look_like_python():
    """Of whole prompts and their completions most begin with several lines that parse."""
    llm = LLM(threads=1)
    prompts = [
        f"def {name}(" for name in ("main", "read", "close", "parse", "get_value", "_check", "copy", "run")
    ]
    done = llm.generate(prompts, SamplingParams(max_tokens=96, temperature=0))
    good = sum(parses(p + c.text) for p, c in zip(prompts, done, strict=True))
    assert good >= len(prompts) / 2
