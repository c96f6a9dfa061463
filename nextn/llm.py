"""The engine in-process, text in and text out.

from nextn import LLM, SamplingParams
llm = LLM()                                  # the embedded model, MTP on
for done in llm.generate(["import os\\n"], SamplingParams(max_tokens=64, temperature=0)):
    print(done.text, done.spec.accept_length)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nextn.config import EMBEDDED, EngineConfig, model_folder
from nextn.engine.engine import Engine
from nextn.grammar.backends import check_backend
from nextn.grammar.compiler import GrammarCompiler
from nextn.request import Output, Request, SamplingParams, SpecStats, TokenLogprob
from nextn.tokenizer.stream import TextStream
from nextn.tokenizer.tokenizer import Tokenizer


@dataclass(slots=True)
class Completion:
    """The result of one prompt. token_ids end before the end token; with a stop string they include the token
    that completed it, while `text` ends before it. drafted[i]: the depth at which token_ids[i] was drafted, 0
    for the target's own choice. If the sampling params ask for them, logprobs[i] is token_ids[i]'s, and
    prompt_logprobs[i] is prompt_token_ids[i]'s, None for the first."""

    prompt_token_ids: list[int]
    text: str
    token_ids: list[int]
    drafted: list[int]
    finish_reason: str  # "stop" or "length"
    spec: SpecStats
    cached_tokens: int
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None


class LLM:
    """The engine with a tokenizer. Options are those of `nextn serve`, as keywords: LLM("nextn-tiny",
    speculative_num_steps=3). Words such as "auto" are accepted too.

    Raises ValueError for a bad option, prompt or checkpoint.
    """

    def __init__(self, model: str = EMBEDDED, **options: Any) -> None:
        known = {f.name: f.metadata["words"] for f in dataclasses.fields(EngineConfig)}
        unknown = sorted(set(options) - known.keys())
        if unknown:
            raise ValueError(f"unknown option {unknown[0]!r}; there are {', '.join(sorted(known))}")
        values = {
            name: known[name].get(value, value) if isinstance(value, str) else value
            for name, value in options.items()
        }
        config = EngineConfig(model_path=model, **values)
        check_backend(config.grammar_backend)
        self.engine = Engine(config)
        self.tokenizer = Tokenizer.from_folder(model_folder(model))
        self.grammars = GrammarCompiler(config, self.engine.vocab_size, self.engine.eos_token_ids)
        self._made = 0

    def generate(
        self,
        prompts: str | Sequence[str] | Sequence[Sequence[int]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        stop: Sequence[str] = (),
    ) -> list[Completion]:
        """Completes every prompt (text or token ids), all in one batch; results in the prompts' order."""
        many: list[str | Sequence[int]] = [prompts] if isinstance(prompts, str) else list(prompts)
        params = sampling_params or SamplingParams()
        each = [params] * len(many) if isinstance(params, SamplingParams) else list(params)
        if len(each) != len(many):
            raise ValueError(f"{len(many)} prompts and {len(each)} sampling params; give one, or one each")
        jobs: dict[str, _Job] = {}
        try:
            for prompt, p in zip(many, each, strict=True):
                ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
                rid = f"llm-{self._made}"
                self._made += 1
                request = Request(rid, list(ids), p)
                if p.constraint is not None:
                    request.grammar = self.grammars.compile(p.constraint)
                self.engine.add(request)
                jobs[rid] = _Job(ids, TextStream(self.tokenizer, stop))
            while any(job.done is None for job in jobs.values()):
                for out in self.engine.step():
                    if jobs[out.rid].take(out):
                        self.engine.abort(out.rid)
        except BaseException:
            for rid in jobs:
                self.engine.abort(rid)
            raise
        return [job.done for job in jobs.values() if job.done is not None]


class _Job:
    def __init__(self, prompt: list[int], stream: TextStream) -> None:
        self.prompt, self.stream = prompt, stream
        self.tokens: list[int] = []
        self.drafted: list[int] = []
        self.logprobs: list[TokenLogprob] | None = None
        self.prompt_logprobs: list[TokenLogprob | None] | None = None
        self.text = ""
        self.done: Completion | None = None

    def take(self, out: Output) -> bool:
        """True when a stop string ended the text before the engine ended the request."""
        piece = self.stream.push(out.tokens)
        self.text += piece.text
        self.tokens += out.tokens[: piece.tokens_used]
        self.drafted += out.drafted[: piece.tokens_used]
        if out.logprobs is not None:
            self.logprobs = self.logprobs or []
            self.logprobs += out.logprobs[: piece.tokens_used]
        self.prompt_logprobs = out.prompt_logprobs or self.prompt_logprobs
        if out.finish_reason is None and piece.stopped is None:
            return False
        self.text += self.stream.finish()
        if out.error is not None:
            raise ValueError(out.error)
        reason = "stop" if piece.stopped is not None else out.finish_reason
        assert reason is not None
        self.done = Completion(
            self.prompt,
            self.text,
            self.tokens,
            self.drafted,
            reason,
            out.spec or SpecStats(),
            out.cached_tokens,
            self.logprobs,
            self.prompt_logprobs,
        )
        return out.finish_reason is None
