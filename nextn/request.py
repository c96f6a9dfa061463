"""What goes into the engine and what comes out of it: plain data, no torch.

A `Request` lives from `Engine.add` to its last `Output`. Its one length axis:

    tokens:  | prompt ........................ | output ............ root |  drafts
    KV:      [0, cached)        in the radix tree, locked by this request
             [cached, committed)  written by this request, true for good
             [committed, reserved)  slots it may write in the next step; what was
                                    rejected there is simply written over

`committed == len(tokens) - 1` while decoding: the root's own KV entry is written by the step that
verifies it. `kvcache.manager` moves these numbers when the scheduler says so; nobody else does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from nextn.constraint import CompiledGrammar, Constraint
from nextn.draft import NO_DRAFT, Draft
from nextn.params_check import check_sampling, check_speculative
from nextn.stats import SpecStats

CHAINS_ONLY = ("rejection", "block")
# Of temperatures: dividing by much less overflows f32, and noise would only decide between logits that are
# all but equal.
GREEDY_BELOW = 1e-5


@dataclass(frozen=True, slots=True)
class SpeculativeParams:
    """What one request asks of speculation; None: what the engine does by default."""

    num_steps: int | None = None  # draft depth; 0: no drafts
    verify: str | None = None  # one of VERIFY_MODES
    accept_threshold_single: float | None = None  # of `typical`
    accept_threshold_acc: float | None = None

    def check(self) -> None:
        """Raises ValueError with the field's name, its value and what it must be."""
        check_speculative(self)

    @property
    def lossy(self) -> bool:
        """May it change the distribution of sampled texts?"""
        thresholds = (self.accept_threshold_single, self.accept_threshold_acc)
        return self.verify == "typical" and any(t not in (None, 1.0) for t in thresholds)

    def or_else(self, defaults: SpeculativeParams) -> SpeculativeParams:
        """These, and where they are None the defaults."""
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return dataclasses.replace(defaults, **{name: v for name, v in own.items() if v is not None})


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen, and what is said of it. Every field but the log-probabilities' is part
    of the choice's definition, see `nextn.sampling.sampler`; `seed` must be set by the time a request reaches
    the engine. With max_tokens 0 a request ends when its prompt has been read.

    Raises ValueError from `check` with the field's name, its value and the range it must be in.
    """

    max_tokens: int = 128
    min_tokens: int = 0
    temperature: float = 1.0  # 0 (below 1e-5): greedy
    top_k: int = -1  # -1, 0, or more than the vocabulary has: all
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # token id -> added to its logit
    constraint: Constraint | None = None  # what the text must match
    seed: int = 0
    stream: int = 0  # which of `n` choices this is: an independent noise stream of the same seed
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    speculative: SpeculativeParams = SpeculativeParams()
    # Log-probabilities to report, and how many of the most likely tokens beside each; None: none
    logprobs: int | None = None  # of the output
    # of the prompt, which is then computed: the prefix cache gives positions whose scores are there already
    prompt_logprobs: int | None = None
    draft_steps: bool = False  # each output tells of its step's draft, see `StepDraft`

    def check(self, vocab_size: int | None = None) -> None:
        check_sampling(self, vocab_size)

    @property
    def verify_mode(self) -> str:
        """What verifies drafts: where sampling is greedy there is one token to accept, and every mode is
        `exact`."""
        return "exact" if self.temperature < GREEDY_BELOW else self.speculative.verify or "exact"

    @property
    def tokens_alone(self) -> bool:
        """Is nothing wanted but tokens, verified by `exact`?"""
        return self.verify_mode == "exact" and self.logprobs is None

    @property
    def lossy(self) -> bool:
        """May verification change the distribution of the text?"""
        return self.verify_mode == "typical" and self.speculative.lossy

    def replace(self, **changes: object) -> SamplingParams:
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


class Failure(NamedTuple):
    """Why a request ended in an error. code: for programs. What one request's data does ends that request
    alone."""

    code: str
    message: str


GRAMMAR_ERROR, NOT_FINITE, REQUEST_FAILED = "grammar_error", "logits_not_finite", "request_failed"
PREFILL_FAILED = "prefill_failed"  # and nobody else is to compute the prompt


def failed_in(what: str, error: BaseException) -> Failure:
    """An exception, which is a mistake of nextn's."""
    return Failure(REQUEST_FAILED, f"the request failed in {what}: {type(error).__name__}: {error}")


class TokenLogprob(NamedTuple):
    """Of the token at one position: log_softmax of the target's raw logits in f32, before temperature,
    penalties and filters. `top`: the most likely tokens as (id, logprob), best first, as many as were asked
    for; the token itself may be among them or not."""

    logprob: float
    top: list[tuple[int, float]]


class StepDraft(NamedTuple):
    """What a step verified for one request. tokens: of the draft, rejected ones too. parents: of each, -1 for
    the root; None: a chain. accepted: by index, from the root down. seconds: from the arrival of the request
    in the engine to the end of the step, by the clock of the engine."""

    tokens: Sequence[int]
    parents: Sequence[int] | None
    accepted: Sequence[int]
    seconds: float


def first_end(tokens: Sequence[int], end_ids: frozenset[int], least: int) -> int | None:
    """The index of the token that ends a request, if one does; none of the first `least` can.

    >>> first_end([5, 2, 7, 2], frozenset({2}), 2)
    3
    """
    if end_ids.isdisjoint(tokens):  # as a rule
        return None
    return next((i for i, token in enumerate(tokens) if i >= least and token in end_ids), None)


@dataclass(slots=True, eq=False)
class PromptGroup:
    """Requests that came together and have one prompt, of which they want the same log-probabilities: what
    one of them computes, the others take. The scheduler fills it in."""

    members: list[Request] = field(default_factory=list)  # that are in the engine, in order of arrival
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)  # of every member, so far
    sent: bool = False  # have they gone out? For whoever sends outputs on


@dataclass(slots=True, eq=False)
class Request:
    """One sequence in the engine. `tokens` is prompt then output, committed only."""

    rid: str
    tokens: list[int]
    params: SamplingParams
    priority: int = 0  # larger goes first
    group: PromptGroup | None = None
    num_prompt: int = 0
    limit: int = 0  # len(tokens) at which it ends by length; set by the engine
    order: int = 0  # arrival number; the youngest is retracted first
    arrived: float = 0.0  # perf_counter, set by the engine
    queued: float = 0.0  # seconds from there to its first step
    # KV bookkeeping: the KV manager's; draft: the scheduler's
    pages: list[int] = field(default_factory=list)
    sent_pages: int = 0  # the executor knows the first so many of `pages`
    cached: int = 0
    committed: int = 0
    # The draft layer has entries for the positions [draft_from, draft_to) and sees no others. Both may lie a
    # part of a page ahead of what is committed.
    draft_from: int = 0
    draft_to: int = 0
    lock: object = None  # the prefix cache's handle for [0, cached)
    draft: Draft = NO_DRAFT
    fetch: bool = False  # pages of its prompt come from another engine (`nextn.scheduler.transfers`)
    hold: bool = False  # another engine wants its pages: they outlive it
    grammar: CompiledGrammar | None = None  # of `params.constraint`, by whoever adds the request
    # Set by the scheduler: tokens that end it; how deep its drafts are, if not automatic depth decides that.
    end_ids: frozenset[int] = frozenset()
    num_steps: int = 0
    automatic: bool = False
    # what users see
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)  # [i]: of token i + 1; so far
    first_cached: int = 0  # prompt tokens found in the cache at first admission
    retractions: int = 0
    spec: SpecStats = field(default_factory=SpecStats)

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def deferred(self) -> int:
        """Of the committed positions, the last so many have no entry of the draft layer yet."""
        return max(0, self.committed - self.draft_to)

    @property
    def decoding(self) -> bool:
        """True when only the root is missing from the KV cache."""
        have = len(self.tokens)
        return self.committed == have - 1 and have > self.num_prompt


@dataclass(slots=True)
class Output:
    """What one request gets from a step. `finish_reason` None: more will come.

    finish_reason: "stop" (an end token, which is not among `tokens`, or the end of its grammar), "length",
    "abort" or "error", which `error` and `error_code` tell, see `Failure`. `matched` is the end token's id,
    None at the end of a grammar. `spec`, `cached_tokens` and `retractions` are set on the last. `queued`:
    seconds that the request waited for its first step.
    `drafted[i]` is the depth at which tokens[i] had been drafted, 0 for the target's own choice.

    Where they were asked for: logprobs[i] is tokens[i]'s, `matched_logprob` the stop token's, and
    `prompt_logprobs` is set on the first output, one for each prompt token, None for the first of them.
    `step`: with `SamplingParams.draft_steps`, what the step verified.
    """

    rid: str
    tokens: list[int]
    drafted: list[int]
    finish_reason: str | None = None
    matched: int | None = None
    error: str | None = None
    error_code: str | None = None
    spec: SpecStats | None = None
    cached_tokens: int = 0
    retractions: int = 0
    logprobs: list[TokenLogprob] | None = None
    matched_logprob: TokenLogprob | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None
    queued: float = 0.0
    step: StepDraft | None = None
