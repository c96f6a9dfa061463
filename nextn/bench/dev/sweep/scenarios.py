"""The scenarios: usual names for pairs of input and output lengths, and their prompts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

from nextn.bench import datasets
from nextn.bench.datasets import Sample, load_samples
from nextn.bench.prompts import all_heldout_prompts
from nextn.tokenizer import Tokenizer

SHORTEST = 16  # minimum of a scaled length, in tokens
CODE = "code"
# Input and output tokens of every prompt.
LENGTHS: dict[str, tuple[int, int]] = {
    "random": (3200, 800),
    "sharegpt": (2500, 1500),
    "translation": (2048, 2048),
    "generation": (256, 2048),
    "summarization": (2048, 256),
}
TEXTS = ("real", "random")
BETWEEN = "\n\n\n"  # separates the texts of a joined prompt


@dataclass(frozen=True)
class Scenario:
    """Lengths are in tokens; None: the lengths of the prompts themselves, or of the answers in `path`."""

    name: str
    input_len: int | None
    output_len: int | None
    text: str  # one of TEXTS
    scale: float = 1.0  # factor of the lengths, already applied
    path: Path | None = None  # a ShareGPT file

    @property
    def title(self) -> str:
        """The usual title, "name input/output"."""
        if self.path is not None:
            return f"{self.name}, {self.path.name}"
        return f"{self.name} {self.input_len}/{self.output_len}" if self.input_len else self.name

    @property
    def source(self) -> str:
        """The source and the length of its prompts, in words."""
        if self.path is not None:
            return f"conversations of {self.path.name}, each as long as in the file"
        if self.input_len is None:
            return f"real text: held-out Python as it is; {self.output_len} output tokens"
        what = "random token ids" if self.text == "random" else "real text: held-out Python, joined"
        lengths = f"{self.input_len} input and {self.output_len} output tokens"
        full = "{}/{}".format(*LENGTHS[self.name])
        return f"{what}; {lengths}" + ("" if self.scale == 1 else f" ({full}, scale {self.scale:g})")

    @property
    def longest(self) -> int:
        """Tokens of prompt and output together; 0 if unknown before the prompts are made."""
        return self.input_len + self.output_len if self.input_len and self.output_len else 0


def make_scenario(
    name: str, scale: float = 1.0, text: str = "real", output_len: int = 128, path: Path | None = None
) -> Scenario:
    """Makes a scenario by name. `output_len`: only for `code`, which is not scaled. Raises ValueError."""
    if name != CODE and name not in LENGTHS:
        raise ValueError(f"--scenario {name}: choose from {', '.join([CODE, *LENGTHS])}")
    if not 0 < scale <= 1000:
        raise ValueError(f"--scale is {scale}; it must be above 0, 1 for the published lengths")
    if name == CODE:
        if text != "real":
            raise ValueError("--text random: the scenario code is real text; leave one of the two out")
        return Scenario(name, None, output_len, text)
    if path is not None and name == "sharegpt":
        return Scenario(name, None, None, text, path=path)
    full = Scenario(name, *LENGTHS[name], text, scale)
    assert full.input_len is not None
    assert full.output_len is not None
    return replace(full, input_len=scaled(full.input_len, scale), output_len=scaled(full.output_len, scale))


def scaled(length: int, scale: float) -> int:
    return max(SHORTEST, round(length * scale))


def check_fits(scenario: Scenario, context: int | None, side: str) -> None:
    """Raises ValueError if prompt and output are longer than `context` tokens. None: the context is not
    known."""
    if context is None or scenario.longest <= context:
        return
    most = context / sum(LENGTHS[scenario.name])
    raise ValueError(
        f"scenario {scenario.title} needs {scenario.longest} tokens of context; {side} has {context}: "
        f"give --scale {int(most * 1000) / 1000:g} or less, or leave it out"
    )


def make_samples(
    scenario: Scenario, tokenizer: Tokenizer | None, count: int, seed: int, context: int | None
) -> list[Sample]:
    """Makes `count` prompts. Conversations of a file that are longer than `context` tokens are left out.

    Raises ValueError if the scenario needs a tokenizer and there is none, or if there are fewer prompts.
    Raises OSError if the file cannot be read.
    """
    if scenario.name == CODE:
        assert scenario.output_len is not None
        return datasets.code(datasets.Options(num_prompts=count, output_len=scenario.output_len))
    if tokenizer is None:
        raise ValueError(
            f"scenario {scenario.name} needs the model's tokenizer; give its folder with --tokenizer"
        )
    if scenario.path is not None:
        return load_samples(
            datasets.Options(
                "sharegpt", scenario.path, count, sharegpt_context_len=context, seed=seed
            ),
            tokenizer,
        )  # fmt: skip
    assert scenario.input_len is not None
    assert scenario.output_len is not None
    if scenario.text == "random":
        options = datasets.Options(
            "random-ids", num_prompts=count, random_input_len=scenario.input_len,
            random_output_len=scenario.output_len, random_range_ratio=1.0, seed=seed,
        )  # fmt: skip
        return load_samples(options, tokenizer)
    return [Sample(ids, scenario.output_len) for ids in joined(tokenizer, count, scenario.input_len)]


def joined(tokenizer: Tokenizer, count: int, length: int) -> list[list[int]]:
    """`count` prompts of `length` token ids from the joined held-out texts. Prompt i begins with text i.
    After the last text, prompts begin one token later in each text, and so on. So no two prompts begin at the
    same place."""
    texts = [text.rstrip() + BETWEEN for text in all_heldout_prompts()]
    pieces = tokenizer.encode_batch(texts, add_special_tokens=False)
    stream = [token for piece in pieces for token in piece]
    begins = [0, *accumulate(map(len, pieces))]
    starts = [
        begin + late
        for late in range(max(map(len, pieces)))
        for begin, piece in zip(begins, pieces, strict=False)
        if late < len(piece)
    ]
    if count > len(starts):
        raise ValueError(f"--num-prompts is {count}; the held-out texts make {len(starts)} prompts")
    endless = stream * (length // len(stream) + 2)
    return [endless[start : start + length] for start in starts[:count]]
