"""Checks of sglang-router and smg with two servers, and with a prefill and a decode server (apart.py)."""

from __future__ import annotations

import json
import urllib.error
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import plain_calls
from bench import PARSERS, Bench, at_once, free_port, until
from blanks import no_blanks
from checks import apart
from findings import Checks, Failed, Finding, NotRun, expect, expect_equal

from nextn.bench.local_server import LocalServer
from nextn.bench.prompts import heldout_prompts

checks = Checks()

CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Write a function."}], "max_tokens": 24, "temperature": 0,
}  # fmt: skip
PROMPT: dict[str, Any] = {"prompt": "import os\n\n\ndef read(", "max_tokens": 24, "temperature": 0}
NATIVE: dict[str, Any] = {
    "text": "import os\n\n\ndef read(", "sampling_params": {"max_new_tokens": 24, "temperature": 0},
}  # fmt: skip
LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {
            "type": "object", "properties": {"deep": {"type": "boolean"}}, "required": ["deep"],
            "additionalProperties": False,
        },
    },
}  # fmt: skip


class Gateway:
    """Two servers behind one gateway. Checks that need another policy start another gateway. `as_sglang`: the
    gateway treats nextn as SGLang, not as vLLM; then it loads its servers' tokenizer without an option."""

    def __init__(self, bench: Bench, command: Sequence[str | Path], as_sglang: bool) -> None:
        self.bench, self.command, self.as_sglang = bench, command, as_sglang
        self.servers = [bench.server(*PARSERS, name=f"worker{i}") for i in range(2)]
        self.url = self.start("cache_aware", self.servers)

    def start(
        self, policy: str, servers: Sequence[LocalServer], *options: str, workers: int | None = None
    ) -> str:
        """Starts a gateway and waits until it knows all servers, or `workers` workers. Returns its URL."""
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        self.bench.service(
            [
                *self.command, "--worker-urls", *(server.url for server in servers), "--policy", policy,
                "--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port()), *options,
            ],
            url + "/health",
        )  # fmt: skip
        count = len(servers) if workers is None else workers
        until(lambda: healthy(url) == count, "the gateway does not find its servers healthy")
        return url

    def plain(self, path: str, body: dict[str, Any]) -> Any:
        return plain_calls.post(self.servers[0].url + path, {"model": self.bench.model, **body})

    def through(self, path: str, body: dict[str, Any]) -> Any:
        return plain_calls.post(self.url + path, {"model": self.bench.model, **body})

    def streamed(self, path: str, body: dict[str, Any]) -> list[Any]:
        return plain_calls.streamed(self.url + path, {"model": self.bench.model, **body})

    def counts(self) -> list[int]:
        """Number of requests that each server has received."""
        return [requests(server) for server in self.servers]


def requests(server: LocalServer) -> int:
    return int(plain_calls.metrics(server.url)["nextn:num_requests_total"])


def healthy(url: str) -> int:
    try:
        return int(plain_calls.get(url + "/readiness").get("healthy_workers", 0))
    except urllib.error.HTTPError as e:
        return int(json.loads(e.read()).get("healthy_workers", 0))


@checks("/v1/models")
def models(gateway: Gateway) -> str:
    listed = [model["id"] for model in plain_calls.get(gateway.url + "/v1/models")["data"]]
    expect_equal(listed, [gateway.bench.model], "models")
    return "the model of the two servers, once"


@checks("/v1/completions and /v1/chat/completions")
def openai(gateway: Gateway) -> str:
    text = gateway.through("/v1/completions", PROMPT)["choices"][0]["text"]
    expect_equal(text, gateway.plain("/v1/completions", PROMPT)["choices"][0]["text"], "text")
    chat = gateway.through("/v1/chat/completions", CHAT)["choices"][0]["message"]["content"]
    plain = gateway.plain("/v1/chat/completions", CHAT)["choices"][0]["message"]["content"]
    expect_equal(chat, plain, "text of the chat")
    return "texts of plain calls"


@checks("the same, streamed")
def streams(gateway: Gateway) -> str:
    usage = {"stream_options": {"include_usage": True}}
    chunks = gateway.streamed("/v1/completions", PROMPT | usage)
    text = "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])
    expect_equal(text, gateway.plain("/v1/completions", PROMPT)["choices"][0]["text"], "text")
    expect_equal(chunks[-1]["usage"]["completion_tokens"], 24, "tokens")
    chunks = gateway.streamed("/v1/chat/completions", CHAT | usage)
    chat = "".join(c["delta"].get("content") or "" for chunk in chunks for c in chunk["choices"])
    plain = gateway.plain("/v1/chat/completions", CHAT)["choices"][0]["message"]["content"]
    expect_equal(chat, plain, "text of the chat")
    expect_equal(chunks[-1]["usage"]["completion_tokens"], 24, "tokens of the chat")
    return "texts of plain calls, usage at the end"


@checks("/generate, whole and streamed")
def native(gateway: Gateway) -> str:
    plain = gateway.plain("/generate", NATIVE)
    whole = gateway.through("/generate", NATIVE)
    expect_equal(whole["text"], plain["text"], "text")
    expect(whole["meta_info"]["spec_verify_ct"] > 0, "nothing of speculation in meta_info")
    expect_equal(gateway.streamed("/generate", NATIVE)[-1]["text"], plain["text"], "streamed text")
    return "texts of a plain call, what speculation did in meta_info"


@checks("tools, structured output, log-probabilities, n")
def fields(gateway: Gateway) -> str:
    bias = {"logit_bias": no_blanks(gateway.bench.tokenizer)}
    asked = CHAT | bias | {"tools": [LOOK], "tool_choice": "required", "max_tokens": 160}
    asked["parallel_tool_calls"] = False
    (call,) = gateway.through("/v1/chat/completions", asked)["choices"][0]["message"]["tool_calls"]
    expect_equal(call["function"]["name"], "look", "the tool")
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": LOOK["function"]["parameters"]}}
    asked = CHAT | bias | {"response_format": form, "max_tokens": 64}
    content = gateway.through("/v1/chat/completions", asked)["choices"][0]["message"]["content"]
    expect_equal(set(json.loads(content)), {"deep"}, "the JSON's keys")
    asked = CHAT | {"logprobs": True, "top_logprobs": 2, "n": 2}
    choices = gateway.through("/v1/chat/completions", asked)["choices"]
    expect_equal([len(choice["logprobs"]["content"]) for choice in choices], [24, 24], "log-probabilities")
    return "reach the server and come back"


@checks("nextn's own fields")
def own_fields(gateway: Gateway) -> str:
    more = {"speculative": {"num_steps": 3}, "return_spec_tokens_details": True}
    lost = []
    for path, body in (("/v1/completions", PROMPT), ("/v1/chat/completions", CHAT)):
        details = gateway.through(path, body | more)["usage"].get("spec_details")
        if details is None or len(details["proposed"]) != 3:
            lost.append(path)
    expect(not lost, f"speculative, return_spec_tokens_details are taken off {' and '.join(lost)}")
    return "speculative and return_spec_tokens_details pass through"


@checks("/v1/tokenize, by the tokenizer that the servers name")
def tokenizer(gateway: Gateway) -> str:
    if not gateway.as_sglang:
        raise NotRun("it loads a tokenizer for gRPC servers only")
    body = {"prompt": PROMPT["prompt"], "add_special_tokens": False}
    until(lambda: plain_calls.get(gateway.url + "/v1/tokenizers")["tokenizers"], "it has no tokenizer")
    tokens = gateway.through("/v1/tokenize", body)["tokens"]
    expect_equal(tokens, gateway.plain("/tokenize", body)["tokens"], "tokens")
    return "token ids of a plain call"


@checks("errors of the server")
def errors(gateway: Gateway) -> str:
    try:
        gateway.through("/v1/completions", PROMPT | {"logit_bias": {"999999999": 1}})
    except urllib.error.HTTPError as e:
        expect_equal(e.code, 400, "status")
        message = json.loads(e.read())["error"]["message"]
        expect("logit_bias" in message, f"message {message!r}")
        return "a 400 keeps its status and message"
    raise Failed("no error")


@checks("--policy round_robin")
def round_robin(gateway: Gateway) -> str:
    url = gateway.start("round_robin", gateway.servers)
    before = gateway.counts()
    for _ in range(8):
        plain_calls.post(url + "/v1/completions", {"model": gateway.bench.model, **PROMPT})
    new = [after - was for was, after in zip(before, gateway.counts(), strict=True)]
    expect_equal(new, [4, 4], "requests of each server")
    return "8 requests, 4 to each server"


@checks("--policy cache_aware")
def cache_aware(gateway: Gateway) -> str:
    """Sends all prefixes at once, so that both servers get some, and then each prefix again, one by one."""
    prefixes = [f"# {letter * 12}\n" + f"def {letter}(x):\n    return x\n\n\n" * 8 for letter in "abcdefgh"]
    before = gateway.counts()
    texts_at_once(gateway, [prefix + "# first\n" for prefix in prefixes])
    new = [after - was for was, after in zip(before, gateway.counts(), strict=True)]
    expect(min(new) > 0, f"of 8 prefixes at once the servers had {new}")
    cached = []
    for prefix in prefixes:
        body = {"prompt": f"{prefix}# again\n", "max_tokens": 4, "temperature": 0}
        usage = gateway.through("/v1/completions", body)["usage"]
        cached.append(usage["prompt_tokens_details"]["cached_tokens"])
    expect(min(cached) > 32, f"cached tokens of prefixes that come again: {cached}")
    return "8 prefixes at once go to both servers; each that comes again finds its server's cache"


@checks("--dp-aware: one server with --dp-size 2")
def dp_aware(gateway: Gateway) -> str:
    """Repeats the same prompt, which the server itself would always send to the same replica."""
    server = gateway.bench.server(*PARSERS, "--dp-size", "2", name="replicas")
    if gateway.as_sglang:
        url = gateway.start("round_robin", [server], "--dp-aware", workers=2)
    else:  # from --worker-urls it would take nextn for vLLM, whose replicas it does not name
        url = gateway.start("round_robin", [], "--dp-aware")
        plain_calls.post(url + "/workers", {"url": server.url, "runtime_type": "sglang"})
        until(lambda: healthy(url) == 2, "the gateway does not find both replicas")
    prompt = "".join(f"def f{i}(x):\n    return x + {i}\n\n\n" for i in range(8))
    body = {"model": gateway.bench.model, **PROMPT, "prompt": prompt}
    expected = gateway.plain("/v1/completions", {**PROMPT, "prompt": prompt})["choices"][0]["text"]
    before = of_replicas(server)
    for path, each in (("/v1/completions", body), ("/generate", {**NATIVE, "text": prompt})):
        for _ in range(4):
            answer = plain_calls.post(url + path, each)
            text = answer["text"] if path == "/generate" else answer["choices"][0]["text"]
            expect_equal(text, expected, "text")
    new = [after - was for was, after in zip(before, of_replicas(server), strict=True)]
    expect(new[0] == new[1] > 0, f"prompt tokens of each replica: {new}")
    how = "" if gateway.as_sglang else ", which was added by POST /workers as SGLang"
    return f"8 requests, 4 to each replica of a server{how}; texts of plain calls"


def of_replicas(server: LocalServer) -> list[int]:
    """Number of prompt tokens that each replica has received."""
    metrics = plain_calls.metrics(server.url)
    return [int(metrics[f'nextn:prompt_tokens_total{{dp_rank="{rank}"}}']) for rank in range(2)]


@checks("32 requests at once")
def many(gateway: Gateway) -> str:
    prompts = heldout_prompts(32)
    before = gateway.counts()
    texts = texts_at_once(gateway, prompts)
    new = [after - was for was, after in zip(before, gateway.counts(), strict=True)]
    alone = [gateway.plain("/v1/completions", PROMPT | {"prompt": p})["choices"][0]["text"] for p in prompts]
    expect_equal(texts, alone, "texts")
    expect(sum(new) == 32 and min(new) > 0, f"requests of each server: {new}")
    return "texts of plain calls one by one, from both servers"


def texts_at_once(gateway: Gateway, prompts: Sequence[str]) -> list[str]:
    bodies = [{"model": gateway.bench.model, **PROMPT, "prompt": prompt} for prompt in prompts]
    return [answer["choices"][0]["text"] for answer in at_once(gateway.url + "/v1/completions", bodies)]


@checks("a server that dies, and one that comes back")
def death(gateway: Gateway) -> str:
    port = free_port()
    mortal = gateway.bench.server(*PARSERS, "--port", str(port), name="mortal")
    other = gateway.servers[1]
    options = (
        "--health-check-interval-secs", "1", "--health-failure-threshold", "2", "--health-check-timeout-secs",
        "1", "--health-success-threshold", "1",
    )  # fmt: skip
    url = gateway.start("round_robin", [mortal, other], *options)

    def ask() -> str:
        body = {"model": gateway.bench.model, **PROMPT}
        return plain_calls.post(url + "/v1/completions", body)["choices"][0]["text"]

    text = ask()
    mortal.stop()
    before = requests(other)
    expect_equal([ask() for _ in range(6)], [text] * 6, "texts after one died")
    expect_equal(requests(other) - before, 6, "requests of the other server")
    until(lambda: healthy(url) == 1, "the dead server is not noticed")
    again = gateway.bench.server(*PARSERS, "--port", str(port), name="again")
    until(lambda: healthy(url) == 2, "the server that is back is not noticed", 60)
    before = requests(again)
    for _ in range(6):
        expect_equal(ask(), text, "text")
    expect(requests(again) > before, "it gets no requests")
    return "6 of 6 requests answered by the other at once; a server on the same port is used again"


def check_router(bench: Bench) -> list[Finding]:
    regular = Gateway(bench, [bench.bin / "python", "-m", "sglang_router.launch_router"], as_sglang=True)
    return [*checks.run(regular), *apart.check(bench, apart.ROUTER), *apart.check(bench, apart.MINI)]


def check_smg(bench: Bench) -> list[Finding]:
    regular = Gateway(bench, [bench.bin / "smg", "launch"], as_sglang=False)
    return [*checks.run(regular), *apart.check(bench, apart.SMG)]
