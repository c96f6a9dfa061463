"""Generates the training texts: the base model's own texts, which are what a drafter must predict.

A chat model gets its template up to the beginning of a user's message. It writes the question itself (Magpie,
arXiv 2406.08464), and then the answer. A model without a chat template writes texts from the first token on.
Half of the answers are greedy and half are sampled at T = 0.7, like in use. No other data is needed.

    texts.jsonl    {"prompt": [ids], "answer": [ids], "temperature": 0.0}     one line for each text
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from nextn import LLM, SamplingParams
from nextn.llm_inputs import chat_text

AT_ONCE = 64
QUESTION, ANSWER = 96, 256  # maximum tokens
SHORTEST = 8  # minimum tokens of an answer
TEMPERATURES = (0.0, 0.7)
MARK = "@@the-user-writes-here@@"


@dataclass(frozen=True)
class Text:
    """A text as token ids. The answer ends with the end token if the model has ended it."""

    prompt: list[int]
    answer: list[int]
    temperature: float

    @property
    def ids(self) -> list[int]:
        return self.prompt + self.answer


def read_texts(path: Path) -> list[Text]:
    """The texts in the file. An incomplete line, which a stopped run can leave at the end, is left out."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            found.append(Text(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    return found


def write_texts(
    model_path: str, path: Path, tokens: int, seconds: float, seed: int, device: str = "cpu"
) -> list[Text]:
    """Appends texts to the file until its answers have `tokens` tokens, or until `seconds` have been spent,
    earlier runs included. Returns all texts."""
    found = read_texts(path)
    done = sum(len(text.answer) for text in found)
    began = path.with_suffix(".seconds")
    spent = float(began.read_text()) if began.exists() else 0.0
    if done >= tokens or spent >= seconds:
        return found
    llm = LLM(model_path, device=device, speculative_num_steps=0)
    before, after = frame(llm)
    bar = tqdm(total=tokens, initial=done, unit="tok", desc="texts", mininterval=5)
    with path.open("a") as file:
        while done < tokens and spent < seconds:
            start = time.monotonic()
            batch = _batch(llm, before, after, seed * 1_000_003 + len(found))
            for text in batch:
                file.write(json.dumps(text.__dict__) + "\n")
            file.flush()
            found += batch
            made = sum(len(text.answer) for text in batch)
            done += made
            spent += time.monotonic() - start
            began.write_text(f"{spent:.1f}")
            bar.update(made)
    bar.close()
    return found


def frame(llm: LLM) -> tuple[list[int], list[int] | None]:
    """The chat template's tokens: (before a user's message, between it and the answer). Without a chat
    template: (the tokens at the beginning of a text, None)."""
    tokenizer = llm.tokenizer
    try:
        text = chat_text([{"role": "user", "content": MARK}], tokenizer, {})
    except ValueError:
        return tokenizer.encode(""), None
    first, _, last = text.partition(MARK)
    if not last:
        return tokenizer.encode(""), None
    return tokenizer.encode(first, add_special_tokens=False), tokenizer.encode(last, add_special_tokens=False)


def _batch(llm: LLM, before: list[int], after: list[int] | None, seed: int) -> list[Text]:
    if after is None:
        prompts = [before or [0]] * AT_ONCE
        temperatures = [1.0] * AT_ONCE
    else:
        draws = [
            SamplingParams(max_tokens=QUESTION, temperature=1.0, top_p=0.95, seed=seed + i)
            for i in range(AT_ONCE)
        ]
        asked = llm.generate([before] * AT_ONCE, draws)
        prompts = [
            [*before, *each.token_ids, *after]
            for each in asked
            if each.finish_reason == "stop" and each.token_ids
        ]
        temperatures = [TEMPERATURES[i % len(TEMPERATURES)] for i in range(len(prompts))]
    params = [
        SamplingParams(max_tokens=ANSWER, temperature=t, seed=seed + i) for i, t in enumerate(temperatures)
    ]
    ends = llm.engine.eos_token_ids
    found = []
    for prompt, t, done in zip(
        prompts, temperatures, llm.generate(prompts, params) if prompts else (), strict=True
    ):
        answer = list(done.token_ids)
        if done.finish_reason == "stop" and ends:
            answer.append(min(ends))
        if len(answer) >= SHORTEST:
            found.append(Text(list(prompt), answer, t))
    return found
