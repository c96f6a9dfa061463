"""Random requests with grammars, schemas, regular expressions and sampling parameters. About half of the
values are ordinary, and half are extreme or wrong. A request depends only on the random generator.

request = hostile(random.Random("7/41"))     # request 41 of seed 7
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

PATHS = ("/v1/completions", "/v1/chat/completions", "/generate")
LETTERS = "abcxyz019_ é€😀\\\"'\n\t\x00\u2028\ud7ff"
WORDS = ("import", "def", "x", "", " ", "é", "😀", "\n", '"', "\\", "<｜end▁of▁sentence｜>", "0" * 300)
COUNTS = (0, 1, 2, 3, 7, 40, 100, 1000, 65536, 10**6, 2**31, 10**12)
VERIFY = ("exact", "rejection", "block", "typical")
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 0.5, 2**31, 2**63, 1e308, 5e-324, float("nan"), float("inf"), "", "x", [], [1], {},
)  # fmt: skip
# For each parameter: (values at the edges of what is accepted, values that are refused or extreme). /generate
# has other names for some parameters.
PARAMS: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "temperature": ((0, 1e-6, 0.7, 1, 2, 100), (-1, 1e-45, 1e308)),
    "top_p": ((1, 0.5, 1e-9), (0, 1.1, -1, 5e-324)),
    "top_k": ((-1, 1, 50, 4096), (0, 2**31, -7)),
    "min_p": ((0, 0.1, 1), (-0.1, 1.5)),
    "repetition_penalty": ((1, 0.5, 1.5, 2), (0, 1e-39, 1e-45, 5e-324, 1e38, 1e300)),
    "frequency_penalty": ((0, -2, 2), (-3, 1e30)),
    "presence_penalty": ((0, -2, 2), (3, -1e30)),
    "max_tokens": ((1, 8, 24, 48), (0, -1, 10**9)),
    "min_tokens": ((0, 1, 8), (-1, 100, 10**9)),
    "n": ((1, 2, 4), (0, 129, 10**9)),
    "seed": ((0, 7, 2**63 - 1), (-(2**63), 2**64)),
    "ignore_eos": ((True, False), ("x",)),
    "logit_bias": (({}, {"5": 100, "6": -100}, {"5": 1e-3}), ({"x": 1}, {"99999": 1}, {"5": 1e300})),
    "stop_token_ids": (([], [5], [5, 6, 7]), ([-1], [10**9], list(range(200)))),
    "skip_special_tokens": ((True, False), (5,)),
}
NATIVE = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens", "seed": "sampling_seed"}


@dataclass(frozen=True)
class Hostile:
    """leaves: number of events after which the client disconnects; 0: after sending its request; None:
    never."""

    path: str
    body: dict[str, Any]
    leaves: int | None


def hostile(rng: random.Random) -> Hostile:
    path = rng.choice(PATHS)
    native = path == "/generate"
    sampling: dict[str, Any] = {"max_tokens": rng.choice((4, 16, 48))}
    for name, (edges, others) in PARAMS.items():
        if rng.random() < 0.2:
            sampling[name] = rng.choice(edges if rng.random() < 0.85 else others)
    if rng.random() < 0.3:
        sampling["stop"] = [rng.choice(WORDS) or "x" for _ in range(rng.randrange(1, 4))]
    if rng.random() < 0.15:
        sampling["stop_regex"] = [regex(rng) for _ in range(rng.randrange(1, 3))]
    if rng.random() < 0.75:
        kind, value = constraint(rng, native)
        sampling[kind] = value
    if native:
        sampling = {NATIVE.get(name, name): value for name, value in sampling.items()}
        body: dict[str, Any] = {"text": prompt(rng), "sampling_params": sampling}
    else:
        body = sampling
        if path == PATHS[0]:
            body["prompt"] = prompt(rng)
        else:
            body["messages"] = [{"role": "user", "content": prompt(rng)}]
    body |= besides(rng, path)
    if rng.random() < 0.05:
        body[rng.choice([*body, "unknown"])] = rng.choice(ODD)
    leaves = rng.choice((0, 1, 3, 8)) if rng.random() < 0.15 else None
    return Hostile(path, body, leaves)


def besides(rng: random.Random, path: str) -> dict[str, Any]:
    """Random fields other than sampling parameters."""
    found: dict[str, Any] = {}
    if rng.random() < 0.4:
        found["stream"] = True
    if rng.random() < 0.4:
        steps = rng.choice((None, 0, 1, 2, 3, 8, 16, 17))
        asked: dict[str, Any] = {} if steps is None else {"num_steps": steps}
        if rng.random() < 0.6:
            asked["verify"] = rng.choice(VERIFY)
        if asked.get("verify") == "typical":
            asked["accept_threshold_single"] = rng.choice((0.0, 0.3, 1.0, 2.0))
        found["speculative"] = rng.choice((asked, asked, asked, False))
    if rng.random() < 0.3:
        tops = rng.choice((0, 1, 5, 20, 21))
        if path == PATHS[0]:
            found |= {"logprobs": tops, "echo": rng.random() < 0.3}
        elif path == PATHS[1]:
            found |= {"logprobs": True, "top_logprobs": tops}
        else:
            start = rng.choice((-1, 0, 2))
            found |= {"return_logprob": True, "top_logprobs_num": tops, "logprob_start_len": start}
    return found


def prompt(rng: random.Random) -> str:
    return "import os\n" + "".join(rng.choice(WORDS) for _ in range(rng.choice((0, 1, 5, 40))))


def constraint(rng: random.Random, native: bool) -> tuple[str, Any]:
    """A random constraint: (field, value). native: only constraints that /generate has."""
    kinds: list[tuple[str, Callable[[random.Random], Any]]] = [
        ("json_schema", lambda r: schema(r, 4)),
        ("json_schema", linked),
        ("regex", regex),
        ("ebnf", gbnf),
        ("structural_tag", tag),
        ("guided_grammar", lark),
        ("guided_choice", choices),
        ("guided_json", lambda r: schema(r, 2)),
    ]
    field, make = rng.choice(kinds[:5] if native else kinds)
    value = make(rng)
    if rng.random() < 0.05 and isinstance(value, str):
        value = value[: rng.randrange(len(value) + 1)]
    return field, value


def count(rng: random.Random) -> int:
    """A random count, mostly small."""
    return rng.choice(COUNTS[:6]) if rng.random() < 0.85 else rng.choice(COUNTS)


def text(rng: random.Random) -> str:
    return "".join(rng.choice(LETTERS) for _ in range(rng.randrange(1, 6)))


def size(rng: random.Random) -> int:
    """A random number of rules, branches, ...: below 8, but in one case of 40 thousands."""
    return rng.choice((1000, 5000)) if rng.random() < 0.025 else rng.randrange(1, 8)


def choices(rng: random.Random) -> list[str]:
    return [text(rng) * rng.choice((1, 1, 1, 500)) for _ in range(size(rng))]


def regex(rng: random.Random, depth: int = 4) -> str:
    if rng.random() < 0.02:
        return "(a|bc)?" * rng.choice((100, 20_000))
    return branch(rng, depth)


def branch(rng: random.Random, depth: int) -> str:
    made = "".join(atom(rng, depth) + repeat(rng) for _ in range(rng.randrange(1, 4)))
    return made if rng.random() < 0.7 else f"{made}|{branch(rng, depth - 1) if depth > 0 else ''}"


def atom(rng: random.Random, depth: int) -> str:
    kind = rng.randrange(8 if depth > 0 else 5)
    if kind < 2:
        return rng.choice("abcxyz é€😀")
    if kind == 2:
        return rng.choice(("[a-z]", "[^a-z]", r"[\w-]", r"\d", r"\s", ".", r"\p{L}", "[é-😀]", "[z-a]", "[]"))
    if kind == 3:
        return rng.choice(("^", "$", r"\b", r"\1", r"\x00", r"\u00e9", r"\Z", r"(?i)", "(?=a)", "(?<!a)"))
    if kind == 4:
        return rng.choice(("", "(", ")", "[", "\\", "*", "{", "(?P<n>a)", "(?:)", "()"))
    return f"{rng.choice(('(', '(', '(?:'))}{branch(rng, depth - 1)})"


def repeat(rng: random.Random) -> str:
    kind = rng.randrange(8)
    if kind < 4:
        return ""
    if kind < 6:
        return rng.choice("*+?")
    low, high = count(rng), count(rng)
    return rng.choice((f"{{{low}}}", f"{{{low},}}", f"{{{low},{high}}}", f"{{,{high}}}"))


def rule(rng: random.Random, names: list[str], literal: Callable[[random.Random], str]) -> str:
    """The right side of a grammar rule, in a form that is valid in both GBNF and Lark."""
    parts = []
    for _ in range(rng.randrange(1, 5)):
        kind = rng.randrange(6)
        if kind < 3:
            part = literal(rng)
        elif kind < 5:
            part = rng.choice(names) if rng.random() < 0.97 else "nowhere"
        else:
            part = f"({literal(rng)} | {rng.choice(names)})"
        parts.append(part + rng.choice(("", "", "", "*", "+", "?", repeat(rng))))
    return " | ".join((" ".join(parts), *([literal(rng)] if rng.random() < 0.6 else [])))


def gbnf(rng: random.Random) -> str:
    names = ["root", *(f"r{i}" for i in range(size(rng)))]

    def literal(r: random.Random) -> str:
        return r.choice((json.dumps(text(r)), '"a"', "[a-z]", "[^\\n]", '""', "."))

    return "\n".join(f"{name} ::= {rule(rng, names, literal)}" for name in names)


def lark(rng: random.Random) -> str:
    names = ["start", *(f"r{i}" for i in range(size(rng)))]

    def literal(r: random.Random) -> str:
        return r.choice((json.dumps(text(r)), '"a"', "/[a-z]+/", f"/{regex(r, 2)}/", "WORD", '""'))

    lines = [f"{name}: {rule(rng, names, literal)}" for name in names]
    return "\n".join([*lines, "WORD: /[a-z]{1,9}/", *(["%ignore / /"] if rng.random() < 0.2 else [])])


def linked(rng: random.Random) -> dict[str, Any]:
    """A schema with definitions that refer to each other, in a chain, in a circle or at random."""
    n = size(rng) + 1
    nodes: dict[str, Any] = {}
    for i in range(n):
        to = rng.choice((i + 1, i + 1, i, rng.randrange(n)))
        link: dict[str, Any] = {"$ref": f"#/$defs/n{to}" if to < n else "#/$defs/end"}
        if rng.random() < 0.5:
            link = {"type": "object", "properties": {"a": link, "b": {"type": "null"}}, "required": ["a"]}
        nodes[f"n{i}"] = link
    return {"$defs": nodes | {"end": schema(rng, 1)}, "$ref": "#/$defs/n0"}


def schema(rng: random.Random, depth: int) -> Any:
    kind = rng.randrange(12 if depth > 0 else 6)
    if kind == 0:
        made: dict[str, Any] = {"type": "string"}
        for key in ("minLength", "maxLength"):
            if rng.random() < 0.4:
                made[key] = count(rng)
        if rng.random() < 0.4:
            made["pattern"] = regex(rng, 2)
        if rng.random() < 0.2:
            made["format"] = rng.choice(("date-time", "uuid", "email", "ipv6", "nonsense"))
        return made
    if kind == 1:
        made = {"type": rng.choice(("integer", "number"))}
        for key in ("minimum", "maximum", "exclusiveMinimum", "multipleOf"):
            if rng.random() < 0.3:
                made[key] = rng.choice((0, 1, -5, 0.1, 1e-9, 1e300, 10**30, -(2**63)))
        return made
    if kind == 2:
        return {
            "enum": [rng.choice((1, None, True, 1.5, text(rng), [1], {"a": 1})) for _ in range(size(rng))]
        }
    if kind == 3:
        return rng.choice(({"const": text(rng)}, {"type": "null"}, {"type": "boolean"}, True, False, {}))
    if kind == 4:
        return {"type": rng.choice((["string", "null"], ["integer", "object"], [], "nonsense"))}
    if kind == 5:
        return {"$ref": rng.choice(("#", "#/$defs/x", "http://localhost:1/x", "#/properties/a"))}
    if kind < 8:
        made = {"type": "array", "items": schema(rng, depth - 1)}
        for key in ("minItems", "maxItems"):
            if rng.random() < 0.4:
                made[key] = count(rng)
        return made
    if kind < 10:
        names = [rng.choice(("a", "b", text(rng))) + str(i) for i in range(size(rng))]
        deeper = depth - 1 if len(names) < 20 else 0
        made = {"type": "object", "properties": {name: schema(rng, deeper) for name in names}}
        if rng.random() < 0.6:
            made["required"] = rng.sample(names, rng.randrange(len(names) + 1))
        if rng.random() < 0.5:
            made["additionalProperties"] = rng.choice((False, True, {"type": "integer"}))
        if rng.random() < 0.2:
            made["patternProperties"] = {regex(rng, 1): schema(rng, 0)}
        return made
    key = rng.choice(("anyOf", "oneOf", "allOf"))
    return {key: [schema(rng, depth - 1) for _ in range(rng.randrange(0, 4))]}


def tag(rng: random.Random) -> dict[str, Any]:
    begin = rng.choice(("<f>", "", text(rng)))
    structure = {"begin": begin, "schema": schema(rng, 1), "end": rng.choice(("</f>", ""))}
    return {
        "type": "structural_tag",
        "structures": [structure] * rng.choice((0, 1, 2)),
        "triggers": [rng.choice(("<", begin, "q"))],
    }
