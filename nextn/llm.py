"""The engine in this process: text in, text out.

from nextn import LLM, SamplingParams
llm = LLM()                                  # the embedded model, MTP on
for done in llm.generate(["import os\\n"], SamplingParams(max_tokens=64, temperature=0)):
    print(done.text, done.spec.accept_length)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nextn.config import model_folder
from nextn.engine.engine import Engine
from nextn.grammar.backends import check_backend
from nextn.grammar.compiler import GrammarCompiler
from nextn.llm_inputs import chat_text, conversations, engine_config, listed, most_tokens, stop_strings
from nextn.request import Output, Request, SamplingParams, TokenLogprob
from nextn.stats import SpecStats
from nextn.tokenizer.stream import TextStream
from nextn.tokenizer.tokenizer import Tokenizer


@dataclass(slots=True)
class CompletionOutput:
    """A text in vLLM's form. stop_reason: the stop string that ended it. cumulative_logprob: None if no
    log-probabilities were requested."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    logprobs: list[TokenLogprob] | None
    finish_reason: str
    stop_reason: str | None


@dataclass(slots=True)
class Completion:
    """The result of one prompt. prompt: its text; None if token ids were given. token_ids: without the end
    token. With a stop string, they include the token that completed it, but `text` ends before it.
    drafted[i]: the depth at which token_ids[i] was drafted, 0 for the target's own choice. If the sampling
    params request them, logprobs[i] is for token_ids[i], and prompt_logprobs[i] for prompt_token_ids[i], None
    for the first."""

    prompt: str | None
    prompt_token_ids: list[int]
    text: str
    token_ids: list[int]
    drafted: list[int]
    finish_reason: str  # "stop" or "length"
    spec: SpecStats
    cached_tokens: int
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None
    stop_reason: str | None = None

    @property
    def outputs(self) -> list[CompletionOutput]:
        """The same text in vLLM's form, for programs written for vLLM: `done.outputs[0].text`."""
        total = None if self.logprobs is None else sum(each.logprob for each in self.logprobs)
        return [
            CompletionOutput(
                0, self.text, self.token_ids, total, self.logprobs, self.finish_reason, self.stop_reason
            )
        ]


Prompt = str | dict[str, Any] | Sequence[int]


class LLM:
    """The engine with a tokenizer. Keywords are the options of `nextn serve`: LLM("nextn-tiny",
    speculative_num_steps=3). Their aliases (model, max_model_len …) and words such as "auto" work too.

    Raises ValueError for a bad option, prompt or checkpoint.
    """

    def __init__(self, model: str | None = None, **options: Any) -> None:
        config = engine_config(options if model is None else {"model": model, **options})
        check_backend(config.grammar_backend)
        self.engine = Engine(config)
        self.tokenizer = Tokenizer.from_folder(model_folder(config.model_path))
        self.grammars = GrammarCompiler(config, self.engine.vocab_size, self.engine.eos_token_ids)
        self._made = 0

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        stop: str | Sequence[str] = (),
    ) -> list[Completion]:
        """Completes all prompts in one batch. Results are in the order of the prompts. A prompt is text,
        token ids, {"prompt": text} or {"prompt_token_ids": ids}."""
        given = listed(prompts)
        return self._run(
            [
                (each, self.tokenizer.encode(each)) if isinstance(each, str) else (None, each)
                for each in given
            ],
            sampling_params,
            stop,
        )

    def chat(
        self,
        messages: Sequence[dict[str, Any]] | Sequence[Sequence[dict[str, Any]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        stop: str | Sequence[str] = (),
        *,
        tools: Sequence[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        reasoning_effort: str | float | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
    ) -> list[Completion]:
        """Answers one conversation, or each of a list, with the checkpoint's chat template. Keywords are
        those of /v1/chat/completions. The text is the model's whole output, including tool calls and
        reasoning."""
        fields = {
            "tools": None if tools is None else list(tools),
            "chat_template_kwargs": chat_template_kwargs,
            "reasoning_effort": reasoning_effort,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
        }
        texts = [chat_text(each, self.tokenizer, fields) for each in conversations(messages)]
        ids = [(text, self.tokenizer.encode(text, add_special_tokens=False)) for text in texts]
        return self._run(ids, sampling_params, stop)

    def _run(
        self,
        prompts: Sequence[tuple[str | None, list[int]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        stop: str | Sequence[str],
    ) -> list[Completion]:
        params = sampling_params or SamplingParams()
        each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        if len(each) != len(prompts):
            raise ValueError(f"{len(prompts)} prompts and {len(each)} sampling params; give one, or one each")
        stops = stop_strings(stop)
        engine = self.engine
        jobs: dict[str, _Job] = {}
        try:
            for (text, ids), p in zip(prompts, each, strict=True):
                rid = f"llm-{self._made}"
                self._made += 1
                most = most_tokens(ids, p.max_tokens, engine.context_length, engine.vocab_size)
                request = Request(rid, ids, p.replace(max_tokens=most))
                if p.constraint is not None:
                    request.grammar = self.grammars.compile(p.constraint)
                engine.add(request)
                jobs[rid] = _Job(text, ids, TextStream(self.tokenizer, stops))
            while any(job.done is None for job in jobs.values()):
                for out in engine.step():
                    if jobs[out.rid].take(out):
                        engine.abort(out.rid)
        except BaseException:
            for rid in jobs:
                engine.abort(rid)
            raise
        return [job.done for job in jobs.values() if job.done is not None]


class _Job:
    def __init__(self, prompt: str | None, ids: list[int], stream: TextStream) -> None:
        self.prompt, self.ids, self.stream = prompt, ids, stream
        self.tokens: list[int] = []
        self.drafted: list[int] = []
        self.logprobs: list[TokenLogprob] | None = None
        self.prompt_logprobs: list[TokenLogprob | None] | None = None
        self.text = ""
        self.done: Completion | None = None

    def take(self, out: Output) -> bool:
        """Adds an output. True if a stop string ended the text while the engine's request is still
        running."""
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
            self.ids,
            self.text,
            self.tokens,
            self.drafted,
            reason,
            out.spec or SpecStats(),
            out.cached_tokens,
            self.logprobs,
            self.prompt_logprobs,
            piece.stopped,
        )
        return out.finish_reason is None
