"""Answers of the routes about the server itself: its options and state, the model, the load."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence, Set
from datetime import datetime, timezone

import msgspec
from msgspec import UNSET, UnsetType

import nextn
from nextn.config import model_folder
from nextn.drafting_state import DraftingState, drafting_words
from nextn.server.answers.service import Service
from nextn.server.http.control import current_defaults
from nextn.server.process.engine_client import EngineClient
from nextn.server.protocol.errors import bad_request
from nextn.server.protocol.responses import Model
from nextn.stats import TransferStats

# SGLang's sections; "memory" and "lora" are empty in nextn
SECTIONS = {"core", "memory", "spec", "lora", "disagg", "queues", "all"}


class SpeculativeLoad(msgspec.Struct):
    """Acceptance over the last interval. auto: the current state of automatic depth. auto_line: the same as
    text, as in the log. Both are absent if the depth is fixed."""

    accept_length: float
    accept_rate: float
    auto: DraftingState | UnsetType = UNSET
    auto_line: str | UnsetType = UNSET


class QueueLoad(msgspec.Struct):
    waiting: int
    retracted: int  # number of retractions so far


class DisaggregationLoad(msgspec.Struct):
    """Transfers between prefill and decode servers, under SGLang's names; `fallbacks` is nextn's own."""

    mode: str
    prefill_inflight_queue_reqs: int  # requests whose pages are being fetched, or are held
    decode_transfer_queue_reqs: int  # requests that wait for their pages
    kv_transfer_speed_gb_s: float  # over all finished transfers
    kv_transfer_latency_ms: float
    fallbacks: int


class Load(msgspec.Struct):
    """The load of one engine, under SGLang's names."""

    dp_rank: int
    timestamp: float
    num_running_reqs: int
    num_waiting_reqs: int
    num_total_reqs: int
    num_used_tokens: int
    max_total_num_tokens: int
    token_usage: float
    gen_throughput: float
    cache_hit_rate: float
    utilization: float
    max_running_requests: int
    seconds_since_last_step: float  # nextn's own; 0 without requests
    engine_up: bool  # nextn's own
    speculative: SpeculativeLoad | UnsetType = UNSET
    queues: QueueLoad | UnsetType = UNSET
    disaggregation: DisaggregationLoad | UnsetType = UNSET


class Loads(msgspec.Struct):
    timestamp: str
    version: str
    loads: list[Load]


class OldLoad(msgspec.Struct):
    """The load of one engine, in the form of /get_load."""

    dp_rank: int
    num_reqs: int
    num_waiting_reqs: int
    num_tokens: int


def loads(service: Service, include: Sequence[str] = (), dp_rank: str | None = None) -> Loads:
    """The load of each engine. include: names from SECTIONS, one or several (with commas) in each string; all
    sections if empty. "core" is always included. dp_rank: only this engine. Raises ApiError (400)."""
    asked = {name for names in include for name in names.split(",")} or {"all"}
    if unknown := sorted(asked - SECTIONS):
        rule = f"choose from {', '.join(sorted(SECTIONS))}"
        raise bad_request(f"include has {unknown[0]!r}; {rule}", "include")
    if dp_rank is not None and not dp_rank.isdecimal():
        raise bad_request(f"dp_rank is {dp_rank!r}; it must be a whole number", "dp_rank")
    now = datetime.now(timezone.utc)
    ranks = [
        load_of(service, rank, client, now.timestamp(), asked)
        for rank, client in enumerate(service.engine.ranks)
        if dp_rank is None or rank == int(dp_rank)
    ]
    return Loads(now.isoformat(), nextn.__version__, ranks)


def load_of(service: Service, rank: int, client: EngineClient, now: float, asked: Set[str]) -> Load:
    """The load of one engine. now: seconds since the epoch. asked: names from SECTIONS."""
    stats, total, last = client.metrics.stats, client.metrics.totals(), client.metrics.interval
    load = Load(
        dp_rank=rank,
        timestamp=now,
        num_running_reqs=stats.running,
        num_waiting_reqs=stats.waiting,
        num_total_reqs=stats.running + stats.waiting,
        num_used_tokens=stats.used_tokens,
        max_total_num_tokens=stats.total_tokens,
        token_usage=stats.used_tokens / max(stats.total_tokens, 1),
        gen_throughput=last.throughput if stats.running else 0.0,
        cache_hit_rate=total.cached_tokens / max(total.prompt_tokens, 1),
        utilization=stats.running / service.config.max_running_requests,
        max_running_requests=service.config.max_running_requests,
        seconds_since_last_step=client.silent_for(),
        engine_up=client.ready is not None,
    )
    if asked & {"spec", "all"}:
        load.speculative = SpeculativeLoad(last.spec.accept_length, last.accept_rate)
        if stats.auto is not None:
            load.speculative.auto, load.speculative.auto_line = (
                stats.auto,
                f"auto: {drafting_words(stats.auto)}",
            )
    if asked & {"queues", "all"}:
        load.queues = QueueLoad(stats.waiting, total.retracted)
    if asked & {"disagg", "all"} and total.transfer is not None:
        load.disaggregation = disaggregation_load(service.config.disaggregation_mode, total.transfer)
    return load


def disaggregation_load(mode: str, transfer: TransferStats) -> DisaggregationLoad:
    seconds = transfer.seconds
    return DisaggregationLoad(
        mode,
        transfer.active if mode == "prefill" else 0,
        transfer.active if mode == "decode" else 0,
        transfer.bytes / seconds / 1e9 if seconds else 0.0,
        seconds * 1000 / max(transfer.finished, 1),
        transfer.fallbacks,
    )


def old_loads(service: Service) -> list[OldLoad]:
    each = [client.metrics.stats for client in service.engine.ranks]
    return [
        OldLoad(rank, stats.running + stats.waiting, stats.waiting, stats.used_tokens)
        for rank, stats in enumerate(each)
    ]


def model_card(service: Service) -> Model:
    return Model(service.config.model_name, service.created, max_model_len(service), root=folder(service))


def max_model_len(service: Service) -> int | None:
    """The longest context, or None while the model is being loaded. A small KV pool makes it shorter than
    --context-length, so it is known only after loading."""
    ready = service.engine.ready
    return None if ready is None else ready.context_length


def folder(service: Service) -> str:
    """The model's folder. Gateways and benchmarks load the tokenizer from it. Given a name like nextn-tiny,
    they would ask a model hub instead."""
    return str(model_folder(service.config.model_path))


def server_info(service: Service) -> dict[str, object]:
    config, ready = service.config, service.engine.ready
    return {
        **{**dataclasses.asdict(config), "model_path": folder(service), "api_key": None},
        "disaggregation_bootstrap_port": service.bootstrap[1],  # the option may be 0, for any free port
        "version": nextn.__version__,
        "status": service.status,
        "served_model_name": config.model_name,
        "max_model_len": max_model_len(service),
        "engine": ready.startup if ready is not None else None,
        "internal_states": [state_of(service, client) for client in service.engine.ranks],
    }


def state_of(service: Service, client: EngineClient) -> dict[str, object]:
    metrics = client.metrics
    total, auto = metrics.totals().spec, metrics.stats.auto
    return {
        "avg_spec_accept_length": total.accept_length,
        "spec_accept_rates": total.accept_rates,
        "last_accept_length": metrics.interval.spec.accept_length,
        "last_gen_throughput": metrics.interval.throughput,
        **({} if auto is None else {"speculative_auto": dataclasses.asdict(auto)}),
        "seconds_since_last_step": client.silent_for(),
        **current_defaults(service),
    }


def model_info(service: Service) -> dict[str, object]:
    """The answer to /model_info. SGLang's bench_serving reads the tokenizer's path from it."""
    return {"model_path": folder(service), "tokenizer_path": folder(service), "is_generation": True}
