"""The requests of a load: prompts and output lengths. They are the same for the same seed.

`code` is real text from the package. `random`, `random-ids` and `generated-shared-prefix` make prompts of
exact lengths as token ids; for an API that takes only text they are decoded. `sharegpt` and `custom` read
files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nextn.bench.apis import Prompt
from nextn.bench.prompts import all_heldout_prompts
from nextn.tokenizer import Tokenizer

DATASETS = ("code", "random", "random-ids", "sharegpt", "custom", "generated-shared-prefix")
SHORTEST = 2  # tokens of a sharegpt prompt or answer; shorter ones are left out, as in bench_serving


@dataclass(frozen=True)
class Options:
    """The options of a dataset. Lengths are in tokens."""

    name: str = "code"
    path: Path | None = None
    num_prompts: int | None = None  # None: 64; for generated-shared-prefix groups x prompts; for custom all
    output_len: int = 128  # for code, and for lines of custom that have no length
    random_input_len: int = 1024
    random_output_len: int = 1024
    random_range_ratio: float = 0.0
    sharegpt_output_len: int | None = None  # None: the length of the answer in the file
    sharegpt_context_len: int | None = None  # longer conversations are left out
    gsp_num_groups: int = 64
    gsp_prompts_per_group: int = 16
    gsp_system_prompt_len: int = 2048
    gsp_question_len: int = 128
    gsp_output_len: int = 256
    seed: int = 1


@dataclass(frozen=True)
class Sample:
    prompt: Prompt
    output_len: int


def load_samples(options: Options, tokenizer: Tokenizer | None) -> list[Sample]:
    """Makes the samples. Raises ValueError, which names the wrong option or the file and line, and OSError
    if the file cannot be read."""
    rng = np.random.default_rng(options.seed)
    if options.name in ("sharegpt", "custom") and options.path is None:
        raise ValueError(f"--dataset-name {options.name} needs --dataset-path")
    if options.name in ("code", "random-ids", "generated-shared-prefix") and options.path is not None:
        raise ValueError(f"--dataset-name {options.name} reads no file; leave --dataset-path out")
    if options.name == "code":
        return code(options)
    if options.name == "custom":
        return custom(options)
    if tokenizer is None:
        raise ValueError(
            f"--dataset-name {options.name} needs the model's tokenizer; give its folder with --tokenizer"
        )
    makers = {
        "random": random, "random-ids": random_ids, "sharegpt": sharegpt,
        "generated-shared-prefix": generated_shared_prefix,
    }  # fmt: skip
    return makers[options.name](options, tokenizer, rng)


def count_of(options: Options) -> int:
    return 64 if options.num_prompts is None else options.num_prompts


def code(options: Options) -> list[Sample]:
    """The held-out prompts in order. The second pass leaves out the first line of each prompt, the third
    pass the first two lines, and so on. So no two prompts begin the same."""
    prompts = [prompt.splitlines(keepends=True) for prompt in all_heldout_prompts()]
    cuts = [
        "".join(lines[dropped:])
        for dropped in range(max(map(len, prompts)))
        for lines in prompts
        if lines[dropped:] and lines[dropped].strip()
    ]
    return [Sample(prompt, options.output_len) for prompt in enough(cuts, options)]


def random_lengths(full: int, ratio: float, count: int, rng: np.random.Generator) -> list[int]:
    """`count` lengths, uniform in [max(int(full * ratio), 1), full]. Raises ValueError if the ratio is not in
    [0, 1]."""
    if not 0.0 <= ratio <= 1.0:
        raise ValueError(f"--random-range-ratio is {ratio}; it must be between 0 and 1")
    lengths: list[int] = rng.integers(max(int(full * ratio), 1), full + 1, count).tolist()
    return lengths


def random(options: Options, tokenizer: Tokenizer, rng: np.random.Generator) -> list[Sample]:
    """Real text of random lengths: texts of the file, or held-out prompts if there is no file, each cut or
    repeated to its length."""
    if options.path is None:
        texts = all_heldout_prompts()
    else:
        texts = [prompt for prompt, _ in conversations(options.path)]
    sources = [ids for ids in tokenizer.encode_batch(texts, add_special_tokens=False) if ids]
    if not sources:
        raise ValueError(f"{options.path} has no text")
    order = rng.permutation(len(sources)).tolist()
    samples = []
    for i, (length, output) in enumerate(both_lengths(options, rng)):
        ids = sources[order[i % len(order)]]
        # A text that is used again begins one token later, so that no two prompts begin the same.
        start = i // len(order) % len(ids)
        ids = ids[start:] + ids[:start]
        samples.append(Sample((ids * -(-length // len(ids)))[:length], output))
    return samples


def random_ids(options: Options, tokenizer: Tokenizer, rng: np.random.Generator) -> list[Sample]:
    ids = ordinary_ids(tokenizer)
    return [
        Sample(rng.choice(ids, length).tolist(), output) for length, output in both_lengths(options, rng)
    ]  # fmt: skip


def both_lengths(options: Options, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
    count, ratio = count_of(options), options.random_range_ratio
    inputs = random_lengths(options.random_input_len, ratio, count, rng)
    return zip(inputs, random_lengths(options.random_output_len, ratio, count, rng), strict=True)


def ordinary_ids(tokenizer: Tokenizer) -> list[int]:
    """All token ids that have text and are not special tokens."""
    spelled = tokenizer.token_bytes(skip_special_tokens=True)
    return [token for token in range(tokenizer.vocab_size) if spelled[token]]


def sharegpt(options: Options, tokenizer: Tokenizer, rng: np.random.Generator) -> list[Sample]:
    """Conversations in random order: the first turn is the prompt, the second turn's length is the output
    length."""
    assert options.path is not None
    found: list[Sample] = []
    turns = conversations(options.path)
    for i in rng.permutation(len(turns)).tolist():
        if len(found) == count_of(options):
            break
        prompt, answer = turns[i]
        length = len(tokenizer.encode(prompt))
        output = options.sharegpt_output_len or len(tokenizer.encode(answer, add_special_tokens=False))
        fits = options.sharegpt_context_len is None or length + output <= options.sharegpt_context_len
        if length >= SHORTEST and output >= SHORTEST and fits:
            found.append(Sample(prompt, output))
    return enough(found, options)


def conversations(path: Path) -> list[tuple[str, str]]:
    """(first turn, second turn) of every conversation in ShareGPT's JSON that has at least two turns. Raises
    ValueError if the file is not in that form."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        turns = [entry.get("conversations", entry.get("conversation", [])) for entry in entries]
        return [(pair[0]["value"], pair[1]["value"]) for pair in turns if len(pair) >= 2]
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise ValueError(
            f'{path} is not in ShareGPT\'s form [{{"conversations": [{{"value": ...}}, ...]}}, ...]: '
            f"{type(e).__name__}: {e}"
        ) from e


def custom(options: Options) -> list[Sample]:
    """JSONL: {"prompt": text or token ids, "output_len": tokens (optional; "output_tokens" is the same)}."""
    assert options.path is not None
    samples = []
    for number, line in enumerate(options.path.read_text(encoding="utf-8").split("\n"), 1):
        if line.strip():
            samples.append(custom_sample(line, f"{options.path}:{number}", options.output_len))
    return enough(samples, options, whole=True)


def custom_sample(line: str, where: str, output_len: int) -> Sample:
    try:
        entry: Any = json.loads(line)
        prompt = entry["prompt"]
        output = entry.get("output_len", entry.get("output_tokens", output_len))
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise ValueError(f'{where} is not {{"prompt": ..., "output_len": ...}}: {e}') from e
    ids = isinstance(prompt, list) and all(type(token) is int for token in prompt)
    if not prompt or not (isinstance(prompt, str) or ids):
        raise ValueError(f"{where}: prompt must be text or token ids, and not empty")
    if type(output) is not int or output < 1:
        raise ValueError(f"{where}: output_len is {output!r}; it must be at least 1")
    return Sample(prompt, output)


def generated_shared_prefix(options: Options, tokenizer: Tokenizer, rng: np.random.Generator) -> list[Sample]:
    """Shuffled groups of prompts. All prompts of a group begin with the same system prompt; each has its own
    question. Both are random ids."""
    groups, each = options.gsp_num_groups, options.gsp_prompts_per_group
    if options.num_prompts not in (None, groups * each):
        raise ValueError(
            f"--num-prompts is {options.num_prompts}, but --gsp-num-groups x --gsp-prompts-per-group is "
            f"{groups * each}; leave --num-prompts out"
        )
    ids = ordinary_ids(tokenizer)
    samples = []
    for _ in range(groups):
        system = rng.choice(ids, options.gsp_system_prompt_len).tolist()
        for _ in range(each):
            question = rng.choice(ids, options.gsp_question_len).tolist()
            samples.append(Sample(system + question, options.gsp_output_len))
    return [samples[i] for i in rng.permutation(len(samples))]


def enough(found: list[Any], options: Options, whole: bool = False) -> list[Any]:
    """The first n samples. `whole`: all of them if num_prompts is not given. Raises ValueError if there are
    fewer than n, or none."""
    count = len(found) if whole and options.num_prompts is None else count_of(options)
    if len(found) < count or not found:
        raise ValueError(f"--num-prompts is {count}; the dataset {options.name} has {len(found)} that fit")
    return found[:count]
