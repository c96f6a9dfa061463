"""Checks of litellm: its SDK, in its own environment, and its proxy server in front of two servers."""

from __future__ import annotations

import json
from typing import Any

import plain_calls
from bench import PARSERS, Bench, free_port
from blanks import no_blanks
from checks.gateways import CHAT, LOOK, PROMPT, requests
from findings import Checks, Finding, expect, expect_equal

KEY = "sk-interop"
proxy_checks = Checks()


class Proxy:
    """litellm's proxy with one model name for two servers. Its configuration is written as JSON, which is
    valid YAML."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.servers = [bench.server(*PARSERS, "--api-key", KEY, name=f"behind{i}") for i in range(2)]
        configuration = {
            "model_list": [
                {
                    "model_name": "any",
                    "litellm_params": {
                        "model": f"hosted_vllm/{bench.model}", "api_base": f"{server.url}/v1", "api_key": KEY,
                        "use_chat_completions_api": True,  # the proxy translates /v1/responses to it
                    },
                }
                for server in self.servers
            ],
            "general_settings": {"master_key": KEY},
        }  # fmt: skip
        file = bench.folder / "proxy.yaml"
        file.write_text(json.dumps(configuration))
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        bench.service(
            [bench.bin / "litellm", "--config", file, "--host", "127.0.0.1", "--port", str(port)],
            self.url + "/health/liveliness",
        )

    def through(self, path: str, body: dict[str, Any]) -> Any:
        return plain_calls.post(self.url + path, {"model": "any", **body}, KEY)

    def plain(self, path: str, body: dict[str, Any]) -> Any:
        return plain_calls.post(self.servers[0].url + path, {"model": self.bench.model, **body}, KEY)

    def plain_chat(self) -> str:
        return str(self.plain("/v1/chat/completions", CHAT)["choices"][0]["message"]["content"])


@proxy_checks("proxy: chat, whole and streamed")
def chat(proxy: Proxy) -> str:
    whole = proxy.through("/v1/chat/completions", CHAT)["choices"][0]["message"]["content"]
    expect_equal(whole, proxy.plain_chat(), "text")
    body = {"model": "any", **CHAT}
    chunks = plain_calls.streamed(proxy.url + "/v1/chat/completions", body, KEY)
    text = "".join(c["delta"].get("content") or "" for chunk in chunks for c in chunk["choices"])
    expect_equal(text, whole, "streamed text")
    return "texts of a plain call"


@proxy_checks("proxy: completions")
def completions(proxy: Proxy) -> str:
    text = proxy.through("/v1/completions", PROMPT)["choices"][0]["text"]
    expect_equal(text, proxy.plain("/v1/completions", PROMPT)["choices"][0]["text"], "text")
    return "text of a plain call"


@proxy_checks("proxy: tools")
def tools(proxy: Proxy) -> str:
    asked = CHAT | {"tools": [LOOK], "tool_choice": "required", "parallel_tool_calls": False}
    asked |= {"max_tokens": 160, "logit_bias": no_blanks(proxy.bench.tokenizer)}
    (call,) = proxy.through("/v1/chat/completions", asked)["choices"][0]["message"]["tool_calls"]
    expect_equal(call["function"]["name"], "look", "the tool")
    expect_equal(set(json.loads(call["function"]["arguments"])), {"deep"}, "its arguments")
    return "a call by the tool's schema"


@proxy_checks("proxy: /v1/messages, Anthropic's API")
def messages(proxy: Proxy) -> str:
    body = {"model": "any", "messages": CHAT["messages"], "max_tokens": 24, "temperature": 0}
    answer = plain_calls.post(proxy.url + "/v1/messages", body, KEY)
    expect_equal(answer["content"][0]["text"], proxy.plain_chat(), "text")
    return "text of a plain call, litellm translates"


@proxy_checks("proxy: /v1/responses, OpenAI's newer API")
def responses(proxy: Proxy) -> str:
    question = CHAT["messages"][0]["content"]
    body = {"model": "any", "input": question, "max_output_tokens": 24, "temperature": 0}
    answer = plain_calls.post(proxy.url + "/v1/responses", body, KEY)
    texts = [part["text"] for item in answer["output"] for part in item.get("content") or []]
    expect_equal("".join(texts), proxy.plain_chat(), "text")
    return "text of a plain call, litellm translates"


@proxy_checks("proxy: two servers")
def both(proxy: Proxy) -> str:
    before = [requests(server) for server in proxy.servers]
    for _ in range(24):
        proxy.through("/v1/chat/completions", CHAT)
    new = [requests(server) - was for server, was in zip(proxy.servers, before, strict=True)]
    expect(sum(new) == 24 and min(new) > 0, f"requests of each server: {new}")
    return "24 requests, some to each server"


def check_litellm(bench: Bench) -> list[Finding]:
    server = bench.server(*PARSERS, "--api-key", KEY)
    settings = {"url": server.url, "model": bench.model, "key": KEY, "tokenizer": str(bench.tokenizer)}
    return bench.inside("litellm_client.py", **settings) + proxy_checks.run(Proxy(bench))
