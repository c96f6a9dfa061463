"""Requests that one client may send to slow down, stop or fill up a server for all others.

An attack is what is sent at once; what must hold of each is in attacks.py. All of them have the size at which
they did harm to some server once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMPLETIONS, CHAT, GENERATE = "/v1/completions", "/v1/chat/completions", "/generate"
TREES = ("--speculative-eagle-topk", "2", "--speculative-num-steps", "3")
# Drafts are tokens among which there is hardly one that JSON can go on with.
MAPPED = (*TREES, "--speculative-token-map", str(Path(__file__).parent / "token_map.json"))
KEY = "k" * 32
KEYED = ("--api-key", KEY)
MANY = "x" * 30_000_000
ESCAPED = '",[{:' * 5_000_000  # reads like JSON
WRONG_AT_THE_END = [[7] * 4000] * 250 + [[10**6]]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": f"f{i}",
            "parameters": {
                "type": "object",
                "properties": {f"p{j}": {"type": "string", "description": "text"} for j in range(14)},
            },
        },
    }
    for i in range(1000)
]


@dataclass(frozen=True)
class Request:
    """leaves: the client goes away so many seconds after it sent its request. headers: further lines."""

    path: str
    body: dict[str, Any]
    leaves: float | None = None
    headers: str = ""


@dataclass(frozen=True)
class Attack:
    """make: all requests, sent at once. options: of the server. honest: fields of the other client's
    requests, for each of its own. refused: must all be answered by a 4xx? Else they may be answered too.
    slower: how many times its usual time the honest client's may be."""

    make: Callable[[], list[Request]]
    options: Sequence[str] = ()
    honest: Callable[[int], dict[str, Any]] = lambda number: {}
    refused: bool = False
    slower: float = 2.0


def completion(path: str = COMPLETIONS, leaves: float | None = None, **fields: Any) -> Request:
    return Request(path, {"prompt": "import os", "max_tokens": 8, "temperature": 0, **fields}, leaves)


def lark_chain(rules: int) -> str:
    chain = (f'r{i}: "a" r{i + 1}' for i in range(rules))
    return "\n".join(["start: r0", *chain, f'r{rules}: "b"'])


def gbnf_chain(rules: int) -> str:
    chain = (f'r{i} ::= "a" r{i + 1}' for i in range(rules))
    return "\n".join(["root ::= r0", *chain, f'r{rules} ::= "b"'])


def endless_gbnf(number: int) -> str:
    """50,000 rules, each of which is the next one: more than a minute. Each number has its own text."""
    chain = (f"r{i} ::= r{i + 1}" for i in range(50_000))
    return "\n".join(["root ::= r0", *chain, f'r50000 ::= "{number}"'])


def linked_objects(count: int) -> dict[str, Any]:
    """Each object has the next one for its only property."""
    link = {"type": "object", "additionalProperties": False, "required": ["a"]}
    nodes: dict[str, Any] = {
        f"n{i}": {**link, "properties": {"a": {"$ref": f"#/$defs/n{i + 1}"}}} for i in range(count)
    }
    return {"$defs": nodes | {f"n{count}": {"type": "string"}}, "$ref": "#/$defs/n0"}


def bare_references(count: int) -> dict[str, Any]:
    nodes: dict[str, Any] = {f"n{i}": {"$ref": f"#/$defs/n{i + 1}"} for i in range(count)}
    return {"$defs": nodes | {f"n{count}": {"type": "string"}}, "$ref": "#/$defs/n0"}


def endless_mask(seed: int) -> Request:
    """After some texts that match it, llguidance 1.9.1 never says what may follow, whatever its limits."""
    grammar = (
        'root ::= "a"+ ([^\\n] | r0) "z" r2*\n'
        "r0 ::= r0 (. | r2)* [a-z]+\n"
        'r1 ::= [a-z]* [^\\n] "a"* "a"*\n'
        'r2 ::= [^\\n] r1? ("a" | root) | .'
    )
    return completion(ebnf=grammar, prompt="import os\ndef", seed=seed, repetition_penalty=1.5, temperature=1)


def powers() -> list[str]:
    """20 regular expressions of a million characters each, in 21 of their own."""
    return [f"(({letter}{{100}}){{100}}){{100}}" for letter in "abcdefghijklmnopqrst"]


def long_regex() -> str:
    return "(a|bc)?" * 149_000


def small_schema(number: int) -> dict[str, Any]:
    """A schema that no request before had, so that it must be compiled."""
    schema = {
        "type": "object",
        "properties": {f"key_{number}": {"type": "integer"}},
        "required": [f"key_{number}"],
        "additionalProperties": False,
    }
    return {"guided_json": schema}


def grammar(**fields: Any) -> Callable[[], list[Request]]:
    return lambda: [completion(**fields)]


def penalty(value: float) -> Attack:
    return Attack(lambda: [completion(repetition_penalty=value, max_tokens=48) for _ in range(2)], TREES)


def prompt(path: str, **body: Any) -> Attack:
    return Attack(lambda: [Request(path, body)], refused=True)


def two_keys() -> list[Request]:
    """One of them is right, which one a proxy before this server would have looked at."""
    right, wrong = f"authorization: Bearer {KEY}\r\n", "authorization: Bearer none\r\n"
    return [
        Request(COMPLETIONS, completion().body, headers=lines) for lines in (right + wrong, wrong + right)
    ]


ATTACKS: dict[str, Attack] = {
    "lark-chain": Attack(grammar(guided_grammar=lark_chain(3000))),
    "schema-objects": Attack(grammar(guided_json=linked_objects(1500))),
    "schema-references": Attack(grammar(guided_json=bare_references(3000))),
    "gbnf-chain": Attack(grammar(ebnf=gbnf_chain(5000))),
    "regex-powers": Attack(lambda: [completion(regex=regex) for regex in powers()]),
    "regex-long": Attack(lambda: [completion(regex=long_regex())]),
    "gbnf-leaves": Attack(
        lambda: [completion(ebnf=endless_gbnf(i), leaves=1.0) for i in range(3)], honest=small_schema
    ),
    "gbnf-endless-mask": Attack(lambda: [endless_mask(seed) for seed in range(4)]),
    "stop-regex-powers": Attack(lambda: [completion(stop_regex=powers()[i::5]) for i in range(5)]),
    "stop-regex-long": Attack(lambda: [completion(stop_regex=[long_regex()])]),
    "stop-regex-leaves": Attack(
        lambda: [completion(stop_regex=[f"(({i}y{{100}}){{100}}){{100}}"], leaves=0.5) for i in range(8)]
    ),
    "tree-penalty-1e-39": penalty(1e-39),
    "tree-penalty-1e-45": penalty(1e-45),
    "tree-penalty-5e-324": penalty(5e-324),
    "tree-choice-too-short": Attack(
        lambda: [completion(guided_choice=["yes", "no"], min_tokens=40, max_tokens=48) for _ in range(2)],
        TREES,
    ),
    "tree-map-schema": Attack(
        lambda: [completion(**small_schema(n), min_tokens=12, max_tokens=48) for n in range(2)], MAPPED
    ),
    "prompt-completions": prompt(COMPLETIONS, prompt=MANY, max_tokens=8),
    "prompt-chat": prompt(CHAT, messages=[{"role": "user", "content": MANY}], max_tokens=8),
    "prompt-generate": prompt(GENERATE, text=MANY, sampling_params={"max_new_tokens": 8}),
    "prompt-tokenize": Attack(lambda: [Request("/tokenize", {"prompt": MANY})]),
    "prompt-token-ids": prompt(COMPLETIONS, prompt=[7] * 5_000_000, max_tokens=8),
    "prompt-escaped": prompt(COMPLETIONS, prompt=ESCAPED, max_tokens=8),
    "prompt-not-ascii": prompt(COMPLETIONS, prompt="é\n" * 5_000_000, max_tokens=8),
    "prompt-wrong-token-id": prompt(COMPLETIONS, prompt=WRONG_AT_THE_END, max_tokens=8),
    "tools": prompt(CHAT, messages=[{"role": "user", "content": "x"}], tools=TOOLS, max_tokens=8),
    "scores": Attack(
        lambda: [completion(prompt=[7] * 4095, max_tokens=0, echo=True, logprobs=5, n=32) for _ in range(2)]
    ),
    "two-keys": Attack(two_keys, KEYED, refused=True),
}


def encoded(request: Request) -> bytes:
    return json.dumps(request.body, ensure_ascii=False).encode()
