"""A side whose server is ready: its name, what it accepts, and its requests."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nextn.bench.apis import BACKENDS, Api
from nextn.bench.client import get
from nextn.bench.datasets import Sample
from nextn.bench.dev.sweep.sides import SideSpec
from nextn.bench.errors import BenchError
from nextn.bench.serve import as_text
from nextn.bench.target import Target, find_target
from nextn.tokenizer import Tokenizer

WARMUP_TOKENS = 32  # at most, of the warm-up completion


@dataclass(frozen=True)
class Contestant:
    spec: SideSpec
    target: Target
    info: dict[str, Any]  # a nextn server's /server_info; empty for other servers
    context: int | None  # tokens; None: the server does not report it

    @property
    def api(self) -> Api:
        return BACKENDS[self.spec.backend]

    @property
    def caches_prompts(self) -> bool:
        """Whether the server can have a prefix cache, so that a repeated prompt is less work."""
        return not self.info.get("disable_radix_cache", False)

    def takes(self, samples: Sequence[Sample], maker: Tokenizer | None) -> list[Sample]:
        """`samples` in a form that this side can read: token ids of `maker` if the side's tokenizer has the
        same ids, otherwise text."""
        same = maker is not None and same_tokens(self.target.tokenizer, maker)
        return list(samples) if self.api.takes_ids and same else as_text(samples, maker)

    def body(self, sample: Sample, temperature: float, seed: int) -> dict[str, Any]:
        """Makes a request that ignores end tokens."""
        made = self.api.body(self.target.model, sample.prompt, sample.output_len, True)
        sampling = made.get("sampling_params", made)
        sampling["temperature"] = temperature
        if temperature > 0:
            sampling["sampling_seed" if "sampling_params" in made else "seed"] = seed
        return made

    def warmup_body(self, sample: Sample) -> dict[str, Any]:
        """Makes a request with the prompt reversed, so that no prompt of the load gets into a cache."""
        return self.body(Sample(sample.prompt[::-1], min(sample.output_len, WARMUP_TOKENS)), 0.0, 0)


async def meet(spec: SideSpec, url: str, tokenizer: str | None, api_key: str | None) -> Contestant:
    """Queries a running server. `tokenizer`: a folder; None: the server's own, if it is on this machine.
    Raises BenchError if there is no server, and ValueError if `tokenizer` cannot be read."""
    try:
        listed = await get(url, "/v1/models", api_key)
    except BenchError as e:
        if spec.backend != "sglang":
            raise BenchError(f"the side {spec.name}: no server at {url}? {e}") from e
        listed = {}
    try:
        context = int(listed["data"][0]["max_model_len"])
    except (KeyError, IndexError, TypeError, ValueError):
        context = None
    target = await find_target(url, None, tokenizer, api_key)
    if target.model is None and spec.backend != "sglang":
        raise BenchError(f"the side {spec.name}: {url}/v1/models lists no model")
    try:
        info = await get(url, "/server_info", api_key)
    except BenchError:
        info = {}
    ours = isinstance(info, dict) and "engine" in info and "disable_radix_cache" in info
    return Contestant(spec, target, info if ours else {}, context)


def same_tokens(one: Tokenizer | None, other: Tokenizer) -> bool:
    """Whether the same ids stand for the same bytes in both."""
    if one is None or one.vocab_size != other.vocab_size:
        return False
    ours, theirs = one.token_bytes(False), other.token_bytes(False)
    return one is other or all(ours[i] == theirs[i] for i in range(one.vocab_size))


def salted(samples: Sequence[Sample], salt: str, tokenizer: Tokenizer | None) -> list[Sample]:
    """The same prompts with new beginnings, so that no prefix cache knows them. A text gets a new first line.
    Token ids keep their length: their beginning is replaced. Raises ValueError for ids without a
    tokenizer."""
    return [salted_sample(sample, f"{salt}.{i}", tokenizer) for i, sample in enumerate(samples)]


def salted_sample(sample: Sample, salt: str, tokenizer: Tokenizer | None) -> Sample:
    line = f"# {hashlib.sha256(salt.encode()).hexdigest()[:12]}\n"
    if isinstance(sample.prompt, str):
        return Sample(line + sample.prompt, sample.output_len)
    if tokenizer is None:
        raise ValueError("prompts of token ids need the model's tokenizer here; give --tokenizer")
    ids = tokenizer.encode(line, add_special_tokens=False)
    return Sample([*ids, *sample.prompt[len(ids) :]][: len(sample.prompt)], sample.output_len)
