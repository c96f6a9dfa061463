"""Counters of one engine, totals since it started."""

from __future__ import annotations

from dataclasses import dataclass, field

from nextn.drafting_state import DraftingState
from nextn.expert_load import ShardRows
from nextn.request import SpecStats


@dataclass(slots=True)
class TransferStats:
    """Of a prefill or a decode server: pages of prompts that went to, or came from, other servers."""

    active: int = 0  # requests whose pages are under way, or waited for
    finished: int = 0  # requests whose pages all arrived
    failed: int = 0  # requests of which pages were missing in the end
    fallbacks: int = 0  # of these, those whose prompt the decode server computed itself
    pages: int = 0
    bytes: int = 0
    seconds: float = 0.0  # of all finished ones, each from the time that its pages were asked for


@dataclass(slots=True)
class EngineStats:
    running: int = 0
    waiting: int = 0
    used_tokens: int = 0  # KV slots held by requests and by the prefix cache's locked part
    total_tokens: int = 0
    steps: int = 0
    decode_steps: int = 0  # steps in which at least one request decoded
    prompt_tokens: int = 0  # prompt tokens of admitted requests, cached ones included
    cached_tokens: int = 0
    generated_tokens: int = 0
    finished: int = 0
    aborted: int = 0
    retracted: int = 0
    spec: SpecStats = field(default_factory=SpecStats)
    waited: float = 0.0  # seconds for which the ranks waited for each other
    sent: int = 0  # bytes that the ranks sent to others with which they share experts
    auto: DraftingState | None = None  # None: the depth is fixed
    shard_rows: ShardRows | None = None  # None: experts are not shared
    transfer: TransferStats | None = None  # None: neither a prefill nor a decode server
