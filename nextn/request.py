"""The engine's input and output as plain data: requests, sampling parameters, outputs. No torch.

A `Request` lives from `Engine.add` to its last `Output`. All its lengths are on one axis:

    tokens:  | prompt ........................ | output ............ root |  drafts
    KV:      [0, cached)          pages of the prefix cache, locked by this request
             [cached, committed)  written by this request, final
             [committed, reserved)  slots that the next step may write; entries of rejected drafts
                                    are here and will be overwritten

`committed == len(tokens) - 1` while decoding: the root's own KV entry is written by the step that
verifies the drafts after it. Only `kvcache.manager` changes these lengths, when the scheduler calls it.
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
# Temperatures below this are greedy. Dividing logits by a smaller number could overflow f32, and noise would
# only decide between logits that are almost equal.
GREEDY_BELOW = 1e-5


@dataclass(frozen=True, slots=True)
class SpeculativeParams:
    """The speculation options of one request. None: the engine's default."""

    num_steps: int | None = None  # draft depth; 0: no drafts
    verify: str | None = None  # one of VERIFY_MODES
    accept_threshold_single: float | None = None  # for the mode `typical`
    accept_threshold_acc: float | None = None

    def check(self) -> None:
        """Raises ValueError with the field's name, its value and the allowed values."""
        check_speculative(self)

    @property
    def lossy(self) -> bool:
        """Whether these options may change the distribution of sampled texts."""
        thresholds = (self.accept_threshold_single, self.accept_threshold_acc)
        return self.verify == "typical" and any(t not in (None, 1.0) for t in thresholds)

    def or_else(self, defaults: SpeculativeParams) -> SpeculativeParams:
        """These options, with `defaults` in place of None."""
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return dataclasses.replace(defaults, **{name: v for name, v in own.items() if v is not None})


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen, when a request ends, and what is reported about its tokens. The text depends on
    all fields except those for reports (`nextn.sampling.sampler`). `seed` must be set when a request reaches
    the engine. With max_tokens 0 a request ends when its prompt has been computed.

    `check` raises ValueError with the field's name, its value and the allowed range.
    """

    max_tokens: int = 128
    min_tokens: int = 0
    temperature: float = 1.0  # 0 (below 1e-5): greedy
    top_k: int = -1  # -1, 0, or more than the size of the vocabulary: all tokens
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # token id -> added to its logit
    constraint: Constraint | None = None  # what the text must match
    seed: int = 0
    stream: int = 0  # number of this choice among `n`; each has an independent noise stream
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    speculative: SpeculativeParams = SpeculativeParams()
    # Log-probabilities: how many of the most likely tokens to report with each. None: no log-probabilities.
    logprobs: int | None = None  # for the output
    # For the prompt. Then the prefix cache is used only for positions whose log-probabilities are known.
    prompt_logprobs: int | None = None
    draft_steps: bool = False  # each output reports the draft of its step, see `StepDraft`

    def check(self, vocab_size: int | None = None) -> None:
        check_sampling(self, vocab_size)

    @property
    def verify_mode(self) -> str:
        """The mode that verifies drafts. With greedy sampling only one token can be accepted, so every mode
        is `exact`."""
        return "exact" if self.temperature < GREEDY_BELOW else self.speculative.verify or "exact"

    @property
    def tokens_alone(self) -> bool:
        """Whether only tokens are wanted, verified by `exact`, without log-probabilities."""
        return self.verify_mode == "exact" and self.logprobs is None

    @property
    def lossy(self) -> bool:
        """Whether verification may change the distribution of the text."""
        return self.verify_mode == "typical" and self.speculative.lossy

    def replace(self, **changes: object) -> SamplingParams:
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


class Failure(NamedTuple):
    """Why a request ended in an error. code: for programs. Such an error ends only the request that caused
    it."""

    code: str
    message: str


GRAMMAR_ERROR, NOT_FINITE, REQUEST_FAILED = "grammar_error", "logits_not_finite", "request_failed"
PREFILL_FAILED = "prefill_failed"  # and --disaggregation-fallback is off


def failed_in(what: str, error: BaseException) -> Failure:
    """The failure for an exception, which is a bug in nextn."""
    return Failure(REQUEST_FAILED, f"the request failed in {what}: {type(error).__name__}: {error}")


class TokenLogprob(NamedTuple):
    """The log-probability of the token at one position: log_softmax of the target's raw logits in f32, before
    temperature, penalties and filters. `top`: the most likely tokens as (id, logprob), best first, as many as
    requested. The token itself may be one of them."""

    logprob: float
    top: list[tuple[int, float]]


class StepDraft(NamedTuple):
    """The draft that a step verified for one request. tokens: all of the draft. parents: the index of each
    token's parent, -1 for the root; None: a chain. accepted: indices of accepted tokens, from the root down.
    seconds: from the arrival of the request in the engine to the end of the step."""

    tokens: Sequence[int]
    parents: Sequence[int] | None
    accepted: Sequence[int]
    seconds: float


def first_end(tokens: Sequence[int], end_ids: frozenset[int], least: int) -> int | None:
    """The index of the first token that ends a request, or None. The first `least` tokens never end it.

    >>> first_end([5, 2, 7, 2], frozenset({2}), 2)
    3
    """
    if end_ids.isdisjoint(tokens):  # the usual case
        return None
    return next((i for i, token in enumerate(tokens) if i >= least and token in end_ids), None)


@dataclass(slots=True, eq=False)
class PromptGroup:
    """Requests with the same prompt that arrived together, the choices of one client request. One of them
    computes the prompt and its log-probabilities, the others reuse both. The scheduler fills it in."""

    members: list[Request] = field(default_factory=list)  # those in the engine, in order of arrival
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)  # computed so far, for all members
    sent: bool = False  # whether these have been sent; set by the code that sends outputs


@dataclass(slots=True, eq=False)
class Request:
    """One sequence in the engine. `tokens`: the prompt and then the output, committed tokens only."""

    rid: str
    tokens: list[int]
    params: SamplingParams
    priority: int = 0  # larger goes first
    group: PromptGroup | None = None
    num_prompt: int = 0
    limit: int = 0  # it ends by length when it has this number of tokens; set by the engine
    order: int = 0  # arrival number; the youngest is retracted first
    arrived: float = 0.0  # perf_counter, set by the engine
    queued: float = 0.0  # seconds from its arrival to its first step
    # Set by the KV manager; `draft` by the scheduler.
    pages: list[int] = field(default_factory=list)
    sent_pages: int = 0  # number of `pages` that the executor knows, from the first on
    cached: int = 0
    committed: int = 0
    # The draft layer has entries for the positions [draft_from, draft_to) and attends to no others. Both can
    # be ahead of `committed` by a part of a page.
    draft_from: int = 0
    draft_to: int = 0
    lock: object = None  # the prefix cache's handle for [0, cached)
    draft: Draft = NO_DRAFT
    fetch: bool = False  # pages of its prompt come from another engine (`nextn.scheduler.transfers`)
    hold: bool = False  # another engine wants its pages, so they are kept after the request's end
    grammar: CompiledGrammar | None = None  # compiled from `params.constraint` by the caller of `Engine.add`
    # Set by the scheduler: tokens that end it; its draft depth, and whether automatic depth decides it.
    end_ids: frozenset[int] = frozenset()
    num_steps: int = 0
    automatic: bool = False
    # reported to users
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)  # [i] is token i + 1's; so far
    first_cached: int = 0  # prompt tokens found in the cache at first admission
    retractions: int = 0
    spec: SpecStats = field(default_factory=SpecStats)

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def deferred(self) -> int:
        """Number of committed positions, at the end, for which the draft layer has no entry yet."""
        return max(0, self.committed - self.draft_to)

    @property
    def decoding(self) -> bool:
        """True when only the root is missing from the KV cache."""
        have = len(self.tokens)
        return self.committed == have - 1 and have > self.num_prompt


@dataclass(slots=True)
class Output:
    """What a step produced for one request. `finish_reason` None: the request continues.

    finish_reason: "stop" (an end token, which is not in `tokens`, or the end of its grammar), "length",
    "abort" or "error" (`error` and `error_code` say why, see `Failure`). `matched`: the id of the end token,
    None at the end of a grammar. `spec`, `cached_tokens` and `retractions` are set on the last output.
    `queued`: seconds that the request waited for its first step.
    `drafted[i]`: the depth at which tokens[i] was drafted, 0 if it is the target's own choice.

    If requested: logprobs[i] is for tokens[i], `matched_logprob` for the end token. `prompt_logprobs` is set
    on the first output, with one entry for each prompt token, None for the first of them.
    `step`: with `SamplingParams.draft_steps`, the draft that the step verified.
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
