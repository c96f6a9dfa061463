"""Checks of a prefill and a decode server behind common gateways, unmodified. Answers are compared with those
of one server that computes everything."""

from __future__ import annotations

import concurrent.futures
import contextlib
import copy
import os
import re
import signal
import urllib.error
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plain_calls
from bench import PARSERS, Bench, at_once, free_port, until
from findings import Checks, Finding, NotRun, expect, expect_equal

from nextn.bench.local_server import LocalServer
from nextn.bench.prompts import heldout_prompts

checks = Checks()

LONG = "".join(f"def f{i}(x):\n    return x + {i}\n\n\n" for i in range(24))
PROMPT: dict[str, Any] = {"prompt": LONG, "max_tokens": 24, "temperature": 0}
MESSAGE = {"role": "user", "content": f"{LONG}\nWrite a function."}
CHAT: dict[str, Any] = {"messages": [MESSAGE], "max_tokens": 24, "temperature": 0}
NATIVE: dict[str, Any] = {"text": LONG, "sampling_params": {"max_new_tokens": 24, "temperature": 0}}
SEEDED = {"temperature": 0.8, "seed": 5}
USAGE = {"stream_options": {"include_usage": True}}


@dataclass(frozen=True)
class Kind:
    """A kind of gateway. `command`: the tool's program and its arguments. `ports`: whether it gets bootstrap
    ports. `readiness`: whether it has /readiness. `token_ids`, `batches`: whether it accepts token ids in
    /v1/completions and lists of prompts in /generate. `two`: whether it sends a request again if one of two
    prefill servers is dead. `ranks`: its option for replicas."""

    name: str
    command: Sequence[str]
    policy: str = "round_robin"
    ports: bool = True
    readiness: bool = True
    token_ids: bool = False
    batches: bool = False
    two: bool = True
    ranks: Sequence[str] = ()


ROUTER = Kind(
    "prefill and decode", ("python", "-m", "sglang_router.launch_router", "--pd-disaggregation"),
    ranks=("--dp-aware",),
)  # fmt: skip
MINI = Kind(
    "--mini-lb", ("python", "-m", "sglang_router.launch_router", "--pd-disaggregation", "--mini-lb"),
    policy="random", readiness=False, token_ids=True, batches=True, two=False,
)  # fmt: skip
SMG = Kind("prefill and decode", ("smg", "launch", "--pd-disaggregation"), ranks=("--dp-aware",))
VLLM = Kind(
    "prefill and decode", ("vllm-router", "--vllm-pd-disaggregation"), ports=False, token_ids=True, two=False,
    ranks=("--intra-node-data-parallel-size", "2"),
)  # fmt: skip


class Apart:
    """A prefill server, a decode server, the gateway, and a server that computes everything."""

    def __init__(self, bench: Bench, kind: Kind) -> None:
        self.bench, self.kind = bench, kind
        self.alone = bench.server(*PARSERS, name="alone")
        self.prefill, self.bootstrap = self.prefill_server()
        self.decode = bench.server(*PARSERS, "--disaggregation-mode", "decode", name="decode")
        self.url = self.start([(self.prefill, self.bootstrap)], self.decode)

    def behind(self, url: str, decode: LocalServer | None = None) -> Apart:
        """The same servers behind another gateway, or with another decode server, too."""
        other = copy.copy(self)
        other.url, other.decode = url, decode or self.decode
        return other

    def prefill_server(self, *options: str) -> tuple[LocalServer, int]:
        port = free_port()
        mode = ("--disaggregation-mode", "prefill", "--disaggregation-bootstrap-port", str(port))
        return self.bench.server(*PARSERS, *mode, *options, name="prefill"), port

    def start(self, prefills: Sequence[tuple[LocalServer, int]], decode: LocalServer, *options: str) -> str:
        """Starts the gateway and returns its URL."""
        port, kind = free_port(), self.kind
        url = f"http://127.0.0.1:{port}"
        words: list[str | Path] = [self.bench.bin / kind.command[0], *kind.command[1:], "--policy"]
        words += [kind.policy, "--host", "127.0.0.1", "--port", str(port), *options]
        for server, bootstrap in prefills:
            words += ["--prefill", server.url, *([str(bootstrap)] if kind.ports else [])]
        words += ["--decode", decode.url]
        if kind.readiness:
            words += ["--prometheus-port", str(free_port())]
        self.bench.service(words, url + "/health")
        if kind.readiness:
            until(lambda: is_ready(url), "the gateway does not find its servers healthy")
        return url

    def same(self, path: str, body: dict[str, Any], fetches: int = 1) -> tuple[Any, Any]:
        """Returns the answers of the gateway and of the single server, after checking that their contents are
        equal. fetches: the number of prompts whose pages the decode server has to fetch."""
        body = {"model": self.bench.model, **body}
        with handed_over(self.decode, fetches, path):
            found = plain_calls.post(self.url + path, body)
        expected = plain_calls.post(self.alone.url + path, body)
        expect_equal(said(found), said(expected), path)
        return found, expected


def is_ready(url: str) -> bool:
    with contextlib.suppress(urllib.error.HTTPError):
        return plain_calls.get(url + "/readiness")["status"] == "ready"
    return False


@contextlib.contextmanager
def handed_over(decode: LocalServer, fetches: int, what: str, fallbacks: int = 0) -> Iterator[None]:
    """Checks that within this context the decode server fetches the pages of so many prompts, and computes
    the prompts of so many requests itself because their pages did not arrive."""
    names = ("finished", "fallbacks")
    before = [transfers(decode, name) for name in names]
    yield
    grown = [transfers(decode, name) - was for name, was in zip(names, before, strict=True)]
    what += ": prompts handed over, and computed by the decode server after a failure"
    expect_equal(grown, [fetches, fallbacks], what)


def transfers(server: LocalServer, what: str) -> float:
    """A counter of the server's transfers, summed over its engines."""
    pattern = re.compile(rf"nextn:transfer_{what}_total(\{{.*)?")
    return sum(value for name, value in plain_calls.metrics(server.url).items() if pattern.fullmatch(name))


def said(answer: Any) -> Any:
    """The parts of an answer that do not depend on the server: texts, finish reasons, log-probabilities and
    lengths."""
    if isinstance(answer, list):
        return [said(each) for each in answer]
    answer = rounded(answer)
    if "meta_info" in answer:
        meta = answer["meta_info"]
        names = ("finish_reason", "prompt_tokens", "completion_tokens", "output_token_logprobs")
        return [answer["text"], answer["output_ids"], *(meta.get(name) for name in names)]
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    return [answer["choices"], *(answer["usage"][name] for name in names)]


def rounded(value: Any) -> Any:
    """The value with numbers rounded to 12 digits. Gateways that join log-probabilities write them again, and
    their JSON library reads a number with an error in its last digit."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return float(f"{value:.12g}") if isinstance(value, float) else value


@checks("completions and chats")
def whole(apart: Apart) -> str:
    for more in ({}, SEEDED, {"stop": ["return"]}, {"max_tokens": 1}):
        apart.same("/v1/completions", PROMPT | more)
        apart.same("/v1/chat/completions", CHAT | more)
    return "answers of one server: greedy, seeded, ended by a stop string, one token; each was handed over"


@checks("the same, streamed")
def streams(apart: Apart) -> str:
    for path, body in (("/v1/completions", PROMPT), ("/v1/chat/completions", CHAT)):
        with handed_over(apart.decode, 1, path):
            chunks = plain_calls.streamed(apart.url + path, {"model": apart.bench.model, **body, **USAGE})
        expected = plain_calls.post(apart.alone.url + path, {"model": apart.bench.model, **body})
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        text = "".join(c["text"] if "text" in c else c["delta"].get("content") or "" for c in choices)
        message = expected["choices"][0]
        expect_equal(text, message["text"] if "text" in message else message["message"]["content"], path)
        expect_equal(chunks[-1]["usage"]["total_tokens"], expected["usage"]["total_tokens"], "tokens")
    return "texts and usage of one server"


@checks("log-probabilities, n, several prompts")
def fields(apart: Apart) -> str:
    apart.same("/v1/completions", PROMPT | {"logprobs": 2})
    apart.same("/v1/completions", PROMPT | {"logprobs": 2, "echo": True}, fetches=0)
    apart.same("/v1/chat/completions", CHAT | {"logprobs": True, "top_logprobs": 2})
    apart.same("/v1/chat/completions", CHAT | SEEDED | {"n": 2})
    apart.same("/v1/completions", PROMPT | SEEDED | {"n": 2})
    apart.same("/v1/completions", PROMPT | SEEDED | {"n": 2, "prompt": [LONG, LONG[:300]]}, fetches=2)
    if apart.kind.token_ids:
        apart.same("/v1/completions", PROMPT | {"prompt": [200 + i % 50 for i in range(100)]})
    return "answers of one server, log-probabilities of the prompt (echo) among them"


@checks("/generate")
def native(apart: Apart) -> str:
    apart.same("/generate", NATIVE)
    # vllm-router removes logprob_start_len. Then the decode server can fetch the prompt.
    body = NATIVE | {"return_logprob": True, "logprob_start_len": 0}
    found, expected = apart.same("/generate", body, fetches=0 if apart.kind.ports else 1)
    inputs = [answer["meta_info"].get("input_token_logprobs") for answer in (found, expected)]
    if apart.kind.ports:
        expect_equal(*map(rounded, inputs), "log-probabilities of the prompt")
    if apart.kind.batches:
        apart.same("/generate", NATIVE | {"text": [LONG, LONG[:300]]}, fetches=2)
    with handed_over(apart.decode, 1, "/generate"):
        chunks = plain_calls.streamed(apart.url + "/generate", NATIVE)
    expect_equal(chunks[-1]["text"], plain_calls.post(apart.alone.url + "/generate", NATIVE)["text"], "text")
    return "answers of one server, log-probabilities of the prompt among them"


@checks("24 requests at once")
def many(apart: Apart) -> str:
    bodies = [{"model": apart.bench.model, **PROMPT, "prompt": prompt} for prompt in heldout_prompts(24)]
    with handed_over(apart.decode, len(bodies), "completions"):
        found = at_once(apart.url + "/v1/completions", bodies)
    expected = at_once(apart.alone.url + "/v1/completions", bodies)
    expect_equal([said(a) for a in found], [said(a) for a in expected], "answers")
    return "answers of one server"


@checks("replicas on both sides, by rank")
def ranks(apart: Apart) -> str:
    if not apart.kind.ranks:
        raise NotRun("it knows no ranks")
    two = ("--dp-size", "2")
    prefill, port = apart.prefill_server(*two)
    decode = apart.bench.server(*PARSERS, "--disaggregation-mode", "decode", *two, name="decode replicas")
    there = apart.behind(apart.start([(prefill, port)], decode, *apart.kind.ranks), decode)
    for i in range(6):
        there.same("/v1/completions", PROMPT | {"prompt": f"# {i}\n{LONG}"})
    until(lambda: sum(by_rank(prefill)) == 6, "the prefill server has not heard of the last hand-over")
    counts = {name: by_rank(server) for name, server in (("prefill", prefill), ("decode", decode))}
    for name, count in counts.items():
        expect(sum(count) == 6 and min(count) > 0, f"prompts of each rank of the {name} server: {count}")
    each = "; ".join(f"{name} {' and '.join(map(str, count))}" for name, count in counts.items())
    return f"{' '.join(apart.kind.ranks)}: answers of one server; prompts of each rank: {each}"


def by_rank(server: LocalServer) -> list[int]:
    """Number of prompts that each of two replicas has handed over, or has been handed."""
    metrics = plain_calls.metrics(server.url)
    return [int(metrics[f'nextn:transfer_finished_total{{dp_rank="{rank}"}}']) for rank in range(2)]


@checks("one of two prefill servers dies")
def death(apart: Apart) -> str:
    if not apart.kind.two:
        raise NotRun("it does not send a request again")
    mortal = apart.prefill_server()
    url = apart.start([(apart.prefill, apart.bootstrap), mortal], apart.decode)
    apart.behind(url).same("/v1/completions", PROMPT)
    mortal[0].stop()
    before = transfers(apart.decode, "finished")
    for i in range(8):
        body = {"model": apart.bench.model, **PROMPT, "prompt": f"# {i} after\n{LONG}"}
        found, expected = (plain_calls.post(at + "/v1/completions", body) for at in (url, apart.alone.url))
        expect_equal(said(found), said(expected), "/v1/completions")
    over = int(transfers(apart.decode, "finished") - before)
    expect(over == 8, f"{over} of 8 prompts were handed over")
    return "8 of 8 answers are those of one server, and each prompt was handed over by the other"


@checks("the prefill server is killed while it computes")
def killed(apart: Apart) -> str:
    """The rest of the prompt is computed by the decode server."""
    if not apart.kind.ports:
        raise NotRun("it has not asked the decode server by then")
    slow = ("--chunked-prefill-size", "32", "--max-running-requests", "8")  # many steps for a prompt
    prefill, port = apart.prefill_server(*slow)
    url = apart.start([(prefill, port)], apart.decode)
    body = {"model": apart.bench.model, **PROMPT, "prompt": "# killed\n" + 4 * LONG}
    before = transfers(apart.decode, "pages")
    with (
        handed_over(apart.decode, 0, "/v1/completions", fallbacks=1),
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        found = pool.submit(plain_calls.post, url + "/v1/completions", body)
        until(lambda: transfers(apart.decode, "pages") > before, "the decode server has received no pages")
        os.kill(prefill.pid, signal.SIGKILL)
        answer = found.result()
    expect_equal(said(answer), said(plain_calls.post(apart.alone.url + "/v1/completions", body)), "answer")
    return "the answer of one server; some pages had arrived, and the decode server computed the rest"


def check(bench: Bench, kind: Kind) -> list[Finding]:
    found = checks.run(Apart(bench, kind))
    return [Finding(f"{kind.name}: {each.use}", each.outcome, each.detail, each.seconds) for each in found]


def check_vllm_router(bench: Bench) -> list[Finding]:
    return check(bench, VLLM)
