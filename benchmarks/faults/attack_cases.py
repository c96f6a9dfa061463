"""Requests that one client can send to slow down, stop or fill up a server for all others.

An attack is a set of requests sent at once; attacks.py says what must hold. Each has the size at which it has
once harmed a server.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMPLETIONS, CHAT, GENERATE = "/v1/completions", "/v1/chat/completions", "/generate"
TREES = ("--speculative-eagle-topk", "2", "--speculative-num-steps", "3")
# The draft vocabulary of this map has hardly any token with which JSON can continue.
MAPPED = (*TREES, "--speculative-token-map", str(Path(__file__).parent / "token_map.json"))
KEY = "k" * 32
KEYED = ("--api-key", KEY)
MANY = "x" * 30_000_000
ESCAPED = '",[{:' * 5_000_000  # characters of JSON's syntax
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
    """One request. leaves: seconds after sending at which the client disconnects; None: never. headers: more
    header lines."""

    path: str
    body: dict[str, Any]
    leaves: float | None = None
    headers: str = ""


@dataclass(frozen=True)
class Attack:
    """make: makes all requests, which are sent at once. options: options of the server. honest(n): extra
    fields of the honest client's n-th request. refused: whether every request must get a 4xx; otherwise they
    can also be served. slower: maximum time of the honest client, as a multiple of its usual time."""

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
    """50,000 rules, each of which refers to the next: takes more than a minute to compile. Each number gives
    another text."""
    chain = (f"r{i} ::= r{i + 1}" for i in range(50_000))
    return "\n".join(["root ::= r0", *chain, f'r50000 ::= "{number}"'])


def linked_objects(count: int) -> dict[str, Any]:
    """A schema of nested objects: the only property of each object is the next one."""
    link = {"type": "object", "additionalProperties": False, "required": ["a"]}
    nodes: dict[str, Any] = {
        f"n{i}": {**link, "properties": {"a": {"$ref": f"#/$defs/n{i + 1}"}}} for i in range(count)
    }
    return {"$defs": nodes | {f"n{count}": {"type": "string"}}, "$ref": "#/$defs/n0"}


def bare_references(count: int) -> dict[str, Any]:
    nodes: dict[str, Any] = {f"n{i}": {"$ref": f"#/$defs/n{i + 1}"} for i in range(count)}
    return {"$defs": nodes | {f"n{count}": {"type": "string"}}, "$ref": "#/$defs/n0"}


def endless_mask(seed: int) -> Request:
    """A grammar for which llguidance 1.9.1, after some matching texts, never returns the mask of next tokens,
    whatever its limits."""
    grammar = (
        'root ::= "a"+ ([^\\n] | r0) "z" r2*\n'
        "r0 ::= r0 (. | r2)* [a-z]+\n"
        'r1 ::= [a-z]* [^\\n] "a"* "a"*\n'
        'r2 ::= [^\\n] r1? ("a" | root) | .'
    )
    return completion(ebnf=grammar, prompt="import os\ndef", seed=seed, repetition_penalty=1.5, temperature=1)


def powers() -> list[str]:
    """20 regular expressions of 21 characters each; each matches a text of a million characters."""
    return [f"(({letter}{{100}}){{100}}){{100}}" for letter in "abcdefghijklmnopqrst"]


def long_regex() -> str:
    return "(a|bc)?" * 149_000


def small_schema(number: int) -> dict[str, Any]:
    """A schema that differs for every number, so that it must be compiled."""
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
    """Requests with a right and a wrong key. A proxy in front of the server could check the other one of the
    two."""
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
