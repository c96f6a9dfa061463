"""The engine process: reads messages, runs steps, sends outputs. One `Engine`, one thread, no web framework.

The supervisor starts it with the spawn method. It ends on `Stop`, when its parent has ended, or with a
traceback when a step fails, because then the engine's bookkeeping may be wrong. An error that concerns only
one request ends only this request (`nextn.engine.runner`, `nextn.scheduler.scheduler`)."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import zmq

from nextn.constraint import CompiledGrammar
from nextn.distributed.group import PeerGone
from nextn.distributed.life import die_with_parent
from nextn.distributed.place import Place
from nextn.distributed.process import RANK, start_early
from nextn.engine.rank_log import name_replica
from nextn.grammar.backends import check_backend
from nextn.grammar.compiler import GrammarCompiler
from nextn.grammar.limits import Busy
from nextn.request import Output, PromptGroup, Request
from nextn.server.process import logs
from nextn.server.process.engine_profile import EngineProfile
from nextn.server.process.grammar_queue import GrammarQueue
from nextn.server.process.messages import (
    Abort,
    Add,
    Done,
    Failed,
    FlushCache,
    FromEngine,
    NewRequest,
    PromptScores,
    Ready,
    Recorded,
    RecordExperts,
    Rejected,
    SetSpeculativeDefaults,
    StartProfile,
    StepOutputs,
    Stop,
    StopProfile,
    ToEngine,
    Tokens,
    decode_to_engine,
    encode,
    requests_of,
    tokens_of,
)
from nextn.server_config import ServerConfig
from nextn.trace import TRACE

if TYPE_CHECKING:
    from nextn.disaggregation.agent import Agent
    from nextn.engine.engine import Engine
    from nextn.engine.executor import Wakes

log = logging.getLogger("nextn.engine")

IDLE_MS = 500  # interval at which an idle engine checks that its parent still runs
COMPILING_MS = 2  # interval at which an engine that waits for grammars checks whether they are compiled
PARENTS_SIGNALS = (signal.SIGINT, signal.SIGTERM)
MakeEngine = Callable[..., "Engine"]  # arguments: a config, and a `Place` if there are groups


def make_engine(config: ServerConfig, place: Place | None = None) -> Engine:
    from nextn.engine.build import make_executor
    from nextn.engine.engine import Engine

    return Engine(config, partial(make_executor, place=place))


def agent_of(engine: Engine, config: ServerConfig, rank: int) -> Agent | None:
    if config.disaggregation_mode == "null":
        return None
    from nextn.disaggregation.agent import make_agent

    return make_agent(engine, config, rank)


def take_gpu(config: ServerConfig, rank: int) -> None:
    """Each replica takes its own GPUs, one for each rank. Raises ValueError if there are too few."""
    if config.device == "cpu" or config.distributed_executor_backend == "ray":  # Ray chooses GPUs itself
        return
    if config.attention_dp > 1:  # the ranks of all groups together use the GPUs 0, 1, and so on
        return
    import torch

    if not torch.cuda.is_available():
        return
    count, each = torch.cuda.device_count(), config.tp_size
    if count < config.dp_size * each:
        needs = "a GPU" if each == 1 else f"{each} GPUs"
        raise ValueError(
            f"--dp-size {config.dp_size}: each replica needs {needs}, and there are {count}; "
            "lower it, or use --device cpu"
        )
    torch.cuda.set_device(rank * each)


def run(
    config: ServerConfig,
    address: str,
    parent: int,
    make: MakeEngine,
    rank: int | None = None,
    place: Place | None = None,
) -> None:
    """The child's main function. address: the ipc:// socket that the parent listens on. parent: its process
    id. rank: number of this replica or group, if there are several. place: given if there are groups."""
    die_with_parent(parent)
    # Ctrl-C and a service manager's SIGTERM reach all processes. The parent drains first, then sends Stop.
    for number in PARENTS_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PARENTS_SIGNALS)
    logs.configure(config.log_level, config.log_format, engine=True, rank=rank)
    name_replica(rank)
    link = Link(address, parent)
    if make is make_engine and config.nnodes == 1 and config.distributed_executor_backend == "mp":
        start_early(RANK, config.tp_size - 1)
    try:
        check_backend(config.grammar_backend)
        if rank is not None:
            take_gpu(config, rank)
        engine = make(config) if place is None else make(config, place)
        agent = agent_of(engine, config, rank or 0)
    except Exception as e:
        if not isinstance(e, (ValueError, OSError)):  # not caused by the user's options or files
            traceback.print_exc()
        link.send(Failed(str(e) or type(e).__name__))
        link.close()
        sys.exit(1)
    link.send(
        Ready(
            engine.vocab_size,
            engine.context_length,
            None if engine.speculation.auto else engine.speculation.num_steps,
            dict(engine.startup),
            engine.stats(),
            0 if agent is None else agent.port,
        )
    )
    gc.collect()
    gc.freeze()  # the garbage collector will skip weights and modules
    try:
        grammars = GrammarCompiler(config, engine.vocab_size, engine.eos_token_ids)
        loop(engine, link, grammars, agent, rank)
        engine.remember()
        if agent is not None:
            agent.close()
        if engine.wakes is not None:
            engine.wakes.leave()
        code = 0
    except PeerGone:  # already logged
        code = 1
    except Exception:
        log.critical("the engine failed and ends:\n%s", traceback.format_exc())
        code = 1
    link.close()
    if code:  # at once: a normal end would tell the ranks of other machines not to join again
        os._exit(code)


class Link:
    """The engine's end of the socket."""

    def __init__(self, address: str, parent: int) -> None:
        self.parent = parent
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.PAIR)
        self.socket.set_hwm(0)
        self.socket.linger = 1000
        self.socket.connect(address)

    def send(self, message: FromEngine) -> None:
        self.socket.send(encode(message))

    def receive(
        self,
        wait: bool,
        milliseconds: int = IDLE_MS,
        wakes: Wakes | None = None,
        agent: Agent | None = None,
    ) -> list[ToEngine]:
        """All messages that have arrived; `Stop` if the parent has ended. wait: wait for messages, up to
        `milliseconds`, or until `wakes` or `agent` has something."""
        others = [each for each in (wakes, agent) if each is not None]
        if wait and others:
            zmq.select([self.socket, *others], [], [], milliseconds / 1000)
            if wakes is not None:
                wakes.hear()
        elif wait:
            self.socket.poll(milliseconds)
        messages: list[ToEngine] = []
        while int(self.socket.get(zmq.EVENTS)) & zmq.POLLIN:
            messages.append(decode_to_engine(self.socket.recv(zmq.NOBLOCK)))
        return messages if os.getppid() == self.parent else [Stop()]

    def close(self) -> None:
        self.socket.close()
        self.context.term()


def loop(
    engine: Engine,
    link: Link,
    grammars: GrammarCompiler,
    agent: Agent | None = None,
    rank: int | None = None,
) -> None:
    """Receives messages, runs steps and sends outputs until `Stop`. agent: transfers pages on a prefill or
    decode server; otherwise None."""
    requests: dict[str, Request] = {}
    grammars.start()
    queue = GrammarQueue(grammars)
    began = sent = time.perf_counter()
    known = (0, 0)  # the last values sent to the server: active transfers, tokens in use
    profile = EngineProfile(link.send, rank)
    while True:
        lap = TRACE.laps("engine loop")
        aborted = False
        idle = engine.stalled or not engine.must_step()
        milliseconds = COMPILING_MS if queue else IDLE_MS
        messages = link.receive(wait=idle, milliseconds=milliseconds, wakes=engine.wakes, agent=agent)
        lap("wait" if idle else "receive")
        if idle:
            began = time.perf_counter()
            engine.check()
        for message in messages:
            if isinstance(message, Add):
                queue.put(requests_of(message))
            elif isinstance(message, Abort):
                queue.drop(message.rid)
                requests.pop(message.rid, None)
                if agent is not None:
                    agent.abort(message.rid)
                aborted |= engine.abort(message.rid)
            elif isinstance(message, SetSpeculativeDefaults):
                set_speculative_defaults(engine, link, message)
            elif isinstance(message, FlushCache):
                flushed = not queue and engine.flush_cache()
                link.send(Done(message.call, None if flushed else "requests are running or waiting"))
            elif isinstance(message, RecordExperts):
                link.send(record_experts(engine, message))
            elif isinstance(message, StartProfile):
                profile.start(message, engine.stats().steps)
            elif isinstance(message, StopProfile):
                profile.stop()
            else:
                return
        for compiled in queue.take():
            groups: dict[int, PromptGroup] = {}
            for new, grammar in compiled:
                group = PromptGroup() if new.group is None else groups.setdefault(new.group, PromptGroup())
                add(engine, link, requests, new, grammar, group, agent)
        lap("add requests")
        stepped = engine.has_work()
        outputs = engine.step() if engine.must_step() else []
        lap.skip()
        if agent is not None:
            outputs += agent.exchange(outputs)
        stats = engine.stats()
        moved = False
        if agent is not None:
            # A transfer may end on its thread after `exchange`. Its pages are then freed one round later.
            stats.transfer, before = agent.stats, known
            known = agent.stats.active, stats.used_tokens
            moved = known != before
        scores = prompt_scores(outputs, requests)
        tokens, others = list[Tokens](), list[Output]()
        for out in outputs:
            # On each output, not only the last: the server may end a request at a stop string.
            request = requests[out.rid]
            out.spec, out.cached_tokens = request.spec, request.first_cached
            if out.finish_reason is not None:
                del requests[out.rid]
            if (plain := tokens_of(out)) is not None:
                tokens.append(plain)
            else:
                others.append(out)
        now = time.perf_counter()
        # An engine that only waits for grammars sends a message too: the watchdog would end a silent one.
        if stepped or aborted or moved or (queue and now - sent >= IDLE_MS / 1000):
            link.send(StepOutputs(others, stats, now - began, scores, tokens))
            began = sent = now
        elif not stepped and not queue:
            began = now  # this step was only for other groups
        lap("send")
        profile.stepped()


def add(
    engine: Engine,
    link: Link,
    requests: dict[str, Request],
    new: NewRequest,
    grammar: CompiledGrammar | ValueError | None,
    group: PromptGroup,
    agent: Agent | None,
) -> None:
    request = Request(new.rid, new.tokens, new.params, new.priority, group)
    try:
        if isinstance(grammar, ValueError):
            raise grammar
        request.grammar = grammar
        if agent is not None and new.remote is not None:
            agent.add(request, new.remote)
        else:
            engine.add(request)
    except Exception as e:
        if not isinstance(e, ValueError):
            log.exception("request %s could not be added", new.rid)
        link.send(Rejected(new.rid, str(e) or type(e).__name__, isinstance(e, Busy)))
    else:
        requests[new.rid] = request


def prompt_scores(outputs: list[Output], requests: dict[str, Request]) -> list[PromptScores]:
    """Moves prompt log-probabilities out of the outputs. Requests of a group have the same prompt, so its
    log-probabilities are sent only once, with the group's first output."""
    found = []
    for out in outputs:
        group, scores = requests[out.rid].group, out.prompt_logprobs
        out.prompt_logprobs = None
        if scores is not None and group is not None and not group.sent:
            group.sent = True
            alike = [rid for rid, request in requests.items() if request.group is group]
            found.append(PromptScores.pack(alike, scores))
    return found


def record_experts(engine: Engine, message: RecordExperts) -> Done | Recorded:
    if message.action == "dump":
        return Recorded(message.call, engine.experts.take())
    try:
        engine.experts.start() if message.action == "start" else engine.experts.stop()
    except ValueError as e:
        return Done(message.call, str(e))
    return Done(message.call, None)


def set_speculative_defaults(engine: Engine, link: Link, message: SetSpeculativeDefaults) -> None:
    error = None
    try:
        engine.set_speculative_defaults(message.defaults)
    except ValueError as e:
        error = str(e)
    link.send(Done(message.call, error))
