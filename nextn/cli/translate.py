"""Translates command lines of SGLang, vLLM and xLLM into nextn's options.

    words, note = translate(["--tp", "1", "--enable-prefix-caching"], known)

Options without effect in nextn go into the note. Options that nextn has under another name are rewritten. All
others are refused; one error names all refused options of a line. The tables are in `nextn.other_engines`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import Any

from nextn.cli.experts import SHARDS, SWITCHES
from nextn.cli.parser import unrecognized
from nextn.cli.profiles import profiler_config
from nextn.other_engines import GRAPHS, NO_OTHER_WAY, OFF, REWRITTEN, SHORT, nothing, only, refused

TRUE, FALSE = ("true", "1", "yes"), ("false", "0", "no")
CHUNK = ("--chunked-prefill-size", "--max-tokens-per-batch", "--max-num-batched-tokens")
REPLICAS = ("--dp-size", "--dp", "--data-parallel-size", "-dp")
ONE_RANK = "there is one rank, so the experts are in one shard"


def translate(words: list[str], known: Collection[str]) -> tuple[list[str], str]:
    """Returns the words with known options only, and a note of one line about options without effect ("" if
    there are none).

    known: the parser's own options. Raises ValueError, which names every option that is not supported.
    """
    return Line(words, known).translated()


class Line:
    """The translation of one command line. `rest`: the words to translate, the next one last. `words`: the
    translated words."""

    def __init__(self, words: list[str], known: Collection[str]) -> None:
        self.rest, self.known, self.all = words[::-1], known, words
        self.words: list[str] = []
        self.notes: dict[str, list[str]] = {}  # reason -> options
        self.refused: dict[str, list[str]] = {}
        self.unknown: list[str] = []
        self.switches: list[str] = []  # names in `SWITCHES`, which are rewritten after all other words

    def translated(self) -> tuple[list[str], str]:
        while self.rest:
            word = self.rest.pop()
            if word == "--":
                self.words += [word, *self.rest[::-1]]
                break
            if not is_option(word):
                self.words.append(word)
                continue
            name, equals, value = word.partition("=")
            if name[:2] == "-O" and name[2:].isdigit():
                name, equals, value = "-O", "=", name[2:]
            short, dot, part = name.partition(".")
            name = SHORT.get(short, short) + dot + part
            self._option(name, value if equals else None, word)
        for name in self.switches:
            words = SWITCHES[name](self.words)
            if words == self.words:
                note(
                    self.notes,
                    "--ep-size sets the number of shards" if self.given(SHARDS) else ONE_RANK,
                    name,
                )
            self.words = words
        problems = [
            f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} not supported: {reason}"
            for reason, names in self.refused.items()
        ]
        if self.unknown:
            problems.append(unrecognized(self.unknown, self.known))
        if problems:
            raise ValueError("; ".join(problems))
        noted = (f"{', '.join(names)} ({reason})" for reason, names in self.notes.items())
        return self.words, f"these options have no effect here: {'; '.join(noted)}" if self.notes else ""

    def _option(self, name: str, value: str | None, word: str) -> None:
        if name in self.known:
            self._known(name, value)
        elif name in SWITCHES and SHARDS[0] in self.known:
            self._shared_experts(name, value)
        elif name in SPECIAL:
            self._special(name, self._one(value))
        elif name in REWRITTEN and REWRITTEN[name][0] in self.known:
            self._switch(name, value)
        elif name in only():
            self._only(name, self._one(value), *only()[name])
        elif (found := nothing(name)) is not None:
            self._nothing(name, value, *found)
        elif name.startswith("--no-") and on(name) in SWITCHES:
            note(self.notes, "it is the default", name)
        elif name.startswith("--no-") and (found := nothing(on(name)) or refused(on(name))):
            note(self.notes, found[0], name)
        elif (refusal := refused(name)) is not None:
            following = [value] if value is not None else self._values()
            off = len(following) == 1 and following[0].lower() in OFF
            note(self.notes if off else self.refused, refusal[0], f"{name} {following[0]}" if off else name)
        else:
            self.unknown.append(name if name.startswith("--") else word)

    def _known(self, name: str, value: str | None) -> None:
        """Takes an option of nextn. A switch can be written as in xLLM, with true or false."""
        opposite = f"--no-{name[2:]}"
        if opposite in self.known:
            value = self._bool(value)
            self.words.append(name if truth(name, value) else opposite)
        else:
            self.words.append(name if value is None else f"{name}={value}")

    def _switch(self, name: str, value: str | None) -> None:
        says = self._bool(value)
        if truth(name, says):
            self.words += REWRITTEN[name]
        elif (opposite := f"--no-{name[2:]}") in REWRITTEN:
            self.words += REWRITTEN[opposite]
        else:
            note(self.notes, "it is off", f"{name} {says}")

    def _shared_experts(self, name: str, value: str | None) -> None:
        """Keeps a switch for later, because its meaning depends on the rest of the line."""
        says = self._bool(value)
        if truth(name, says):
            self.switches.append(name)
        else:
            note(self.notes, "it is off", f"{name} {says}")

    def _only(self, name: str, value: str, values: Collection[str], reason: str) -> None:
        says = f"{name} {value}".rstrip()
        if value and says in REWRITTEN:
            self.words += REWRITTEN[says]
        else:
            note(self.notes if value.lower() in values else self.refused, reason, says)

    def _nothing(self, name: str, value: str | None, reason: str, count: str) -> None:
        """Notes an option without effect, or refuses a value of it that nextn cannot follow. count: "" for a
        switch, "=" for an option with one value, "=*" with several."""
        said, opposite = "", f"--no-{name[2:]}"
        if count == "":
            said = (self._bool(value) or "").lower()
        elif value is None:
            self._values(one=count == "=")
        where = self.notes
        cuda = any(word.lower() in ("cuda", "--device=cuda") for word in self.all)
        if said in FALSE and opposite in only():
            where, reason = self.refused, only()[opposite][1]
        elif reason == GRAPHS and cuda:
            where = self.refused
        note(where, reason, f"{name} {said}".rstrip())

    def _special(self, name: str, value: str) -> None:
        try:
            self.words += SPECIAL[name](self, name, value)
        except ValueError as e:
            self.refused.setdefault(str(e), []).append(name)

    def _bool(self, value: str | None) -> str | None:
        """A switch's value: the text after "=", or the next word if it is true or false."""
        if value is None and self._next_is_bool():
            return self.rest.pop()
        return value

    def _one(self, value: str | None) -> str:
        if value is not None:
            return value
        return "".join(self._values(one=True))

    def _values(self, one: bool = False) -> list[str]:
        found: list[str] = []
        while self.rest and not is_option(self.rest[-1]) and not (one and found):
            found.append(self.rest.pop())
        return found

    def given(self, names: Collection[str]) -> list[str]:
        """Values of the option with these names, anywhere in the line."""
        pairs = zip(self.all, [*self.all[1:], ""], strict=True)
        return [a.partition("=")[2] or b for a, b in pairs if a.partition("=")[0] in names]

    def _next_is_bool(self) -> bool:
        return bool(self.rest) and self.rest[-1].lower() in ("true", "false")


def truth(name: str, value: str | None) -> bool:
    """Whether a switch with this value is on. None: the switch has no value. Raises ValueError."""
    if value is None or value.lower() in TRUE:
        return True
    if value.lower() in FALSE:
        return False
    raise ValueError(f"{name} is {value!r}: it must be true or false")


def note(where: dict[str, list[str]], reason: str, option: str) -> None:
    where.setdefault(reason, []).append(option)


def is_option(word: str) -> bool:
    """Whether a word is an option. Negative numbers and a single dash are values."""
    return word.startswith("--") or (word[:1] == "-" and word[1:2].isalpha())


def on(name: str) -> str:
    return "--" + name.removeprefix("--no-")


def json_object(value: str) -> dict[str, Any]:
    """Parses a JSON object and leaves out keys that are null or false. Raises ValueError."""
    try:
        given: Any = json.loads(value)
    except ValueError as e:
        raise ValueError(f"its value {value!r} is not JSON ({e})") from e
    if not isinstance(given, dict):
        raise ValueError(f"its value is a JSON {type(given).__name__}; it must be an object")
    return {key: v for key, v in given.items() if v is not None and v is not False}


def speculative_config(line: Line, name: str, value: str) -> list[str]:
    """Translates vLLM's JSON. Raises ValueError, which names wrong keys."""
    given = json_object(value)
    words: list[str] = []
    method = str(given.pop("method", "")).lower()
    if method.startswith("ngram"):
        words += ["--speculative-algorithm", "NGRAM"]
        given.pop("model", None)  # vLLM allows "ngram" here too
    elif method == "mtp" or method.endswith("_mtp") or method == "eagle":
        words += ["--speculative-algorithm", "NEXTN"]
    elif method:
        raise ValueError(f"its method is {method!r}; nextn supports mtp, eagle (the same as mtp) and ngram")
    if "num_speculative_tokens" in given:
        words += ["--speculative-num-steps", str(given.pop("num_speculative_tokens"))]
    if "model" in given:
        words += ["--speculative-draft-model-path", str(given.pop("model"))]
    if given.get("rejection_sample_method") in ("standard", "block"):
        words += ["--speculative-verify", "block"] * (given.pop("rejection_sample_method") == "block")
    for key in ("draft_tensor_parallel_size", "tensor_parallel_size"):
        if given.get(key) == 1:
            del given[key]
    if given:
        raise ValueError(
            f"its keys {', '.join(sorted(given))} are unknown to nextn; it reads method, "
            "num_speculative_tokens, model and rejection_sample_method"
        )
    return words


def max_prefill_tokens(line: Line, name: str, value: str) -> list[str]:
    """Translates SGLang's option. SGLang takes the smaller of it and --chunked-prefill-size. nextn has only
    one limit for a step."""
    chunks = line.given(CHUNK)
    if not chunks:
        return [CHUNK[0], value]
    if not (value.isdigit() and chunks[-1].isdigit()) or int(value) < int(chunks[-1]):
        raise ValueError(
            f"{CHUNK[0]} is the only limit of a step; give only that option, with the smaller number"
        )
    note(line.notes, f"{CHUNK[0]} is less", f"{name} {value}")
    return []


NODES = ("--nnodes", "-n")
VLLM_PORT = "29501"  # vLLM's default port of node 0


def master(line: Line, name: str, value: str) -> list[str]:
    """Translates vLLM's --master-addr and --master-port. Either of them can be missing."""
    if set(line.given(NODES)) <= {"1"}:
        note(line.notes, "there is one machine only", f"{name} {value}")
        return []
    if name == "--master-port":
        return [] if line.given(("--master-addr",)) else ["--dist-init-addr", f"127.0.0.1:{value}"]
    port = (line.given(("--master-port",)) or [VLLM_PORT])[-1]
    return ["--dist-init-addr", f"[{value}]:{port}" if ":" in value else f"{value}:{port}"]


def master_node_addr(line: Line, name: str, value: str) -> list[str]:
    """Translates xLLM's option. xLLM's --nnodes counts devices, so each rank is a node. Its --dp-size is the
    number of attention groups of these ranks."""
    nodes = line.given(NODES)
    if set(nodes) <= {"1"}:
        note(line.notes, "there is one machine only", f"{name} {value}")
        return []
    sizes = ("--tp-size", "--tp", "--tensor-parallel-size")
    groups = REPLICAS[0] in line.known and set(line.given(REPLICAS)) - {"1"}
    return [
        "--dist-init-addr",
        value,
        *(() if line.given(sizes) else ("--tp-size", nodes[-1])),
        *(("--enable-dp-attention",) if groups else ()),
    ]


def eplb_config(line: Line, name: str, value: str) -> list[str]:
    """Translates vLLM's JSON. Raises ValueError, which names wrong keys."""
    given = json_object(value)
    words: list[str] = []
    for key, ours in EPLB.items():
        if key in given:
            words += [ours, str(given.pop(key))]
    if given.get("policy") == "default":
        del given["policy"]
    if given:
        raise ValueError(
            f"its keys {', '.join(sorted(given))} are unknown to nextn; it reads {' and '.join(EPLB)}"
        )
    if not words:
        note(line.notes, "its values are the defaults", name)
    return words


EPLB = {
    "step_interval": "--eplb-rebalance-num-iterations",
    "num_redundant_experts": "--ep-num-redundant-experts",
}


def redundant_experts_num(line: Line, name: str, value: str) -> list[str]:
    """Translates xLLM's option, which counts the redundant experts of each shard."""
    shards = (line.given(SHARDS) or ["1"])[-1]
    if not (value.isdecimal() and shards.isdecimal()):
        raise ValueError(
            "it must be a whole number, for each shard; or give --ep-num-redundant-experts, for all shards"
        )
    return [EPLB["num_redundant_experts"], str(int(value) * int(shards))]


def attn_dp_size(line: Line, name: str, value: str) -> list[str]:
    """Translates SGLang's newer name of --dp-size with --enable-dp-attention."""
    if others := sorted(set(line.given((*REPLICAS, *ATTENTION_GROUPS))) - {value}):
        raise ValueError(
            f"it is {value}, and another name of the same option is {others[0]}; give one of them"
        )
    if value == "1":
        note(line.notes, "it is the default", f"{name} {value}")
        return []
    if REPLICAS[0] not in line.known:
        raise ValueError(NO_OTHER_WAY)
    return [REPLICAS[0], value, "--enable-dp-attention"]


PART = "--disaggregation-mode"  # only a server has this option


def kv_transfer_config(line: Line, name: str, value: str) -> list[str]:
    """Translates vLLM's JSON. Raises ValueError, which names the keys or values that nextn does not
    support."""
    given = json_object(value)
    if PART not in line.known:
        raise ValueError("only nextn serve can split requests into prefill and decode")
    connector, role = given.pop("kv_connector", None), given.pop("kv_role", None)
    if connector != "NixlConnector":
        raise ValueError(
            f"its kv_connector is {connector!r}; it must be NixlConnector, whose protocol nextn uses"
        )
    parts = {"kv_producer": "prefill", "kv_consumer": "decode"}
    if role not in parts:
        raise ValueError(f"its kv_role is {role!r}; it must be kv_producer or kv_consumer; or give {PART}")
    words = [PART, parts[role]]
    fallback = {"recompute": "on", "fail": "off"}
    policy = given.pop("kv_load_failure_policy", "recompute")
    if policy not in fallback:
        raise ValueError(f"its kv_load_failure_policy is {policy!r}; it must be recompute or fail")
    if fallback[policy] == "off":
        words += ["--disaggregation-fallback", "off"]
    buffers = [key for key in ("kv_buffer_device", "kv_buffer_size") if given.pop(key, None) is not None]
    if given:
        raise ValueError(
            f"its keys {', '.join(sorted(given))} are unknown to nextn; it reads kv_connector, kv_role and "
            "kv_load_failure_policy"
        )
    if buffers:
        note(
            line.notes,
            "pages are copied from pool to pool, without a buffer",
            f"{name} with {' and '.join(buffers)}",
        )
    return words


def instance_role(line: Line, name: str, value: str) -> list[str]:
    """Translates xLLM's option, which has an effect only with --enable-disagg-pd. MIX and DEFAULT compute
    whole requests."""
    role = value.lower()
    if role in ("default", "mix"):
        note(line.notes, "a server computes whole requests", f"{name} {value}")
        return []
    if role not in ("prefill", "decode"):
        raise ValueError(f"it is {value!r}; it must be PREFILL, DECODE, MIX or DEFAULT")
    if PART not in line.known:
        raise ValueError("only nextn serve can split requests into prefill and decode")
    switch = [word.partition("=")[2] for word in line.all if word.partition("=")[0] == PD_SWITCH]
    following = line.given((PD_SWITCH,))
    if not switch or {*switch, *following} & set(FALSE):
        raise ValueError(f"it has no effect without {PD_SWITCH}; give that too, or {PART} {role}")
    return [PART, role]


PD_SWITCH = "--enable-disagg-pd"
ATTENTION_GROUPS = ("--attn-dp-size", "--attention-data-parallel-size")

SPECIAL: dict[str, Callable[[Line, str, str], list[str]]] = {
    "--speculative-config": speculative_config,
    "--max-prefill-tokens": max_prefill_tokens,
    "--master-addr": master,
    "--master-port": master,
    "--master-node-addr": master_node_addr,
    "--eplb-config": eplb_config,
    "--kv-transfer-config": kv_transfer_config,
    "--profiler-config": lambda line, name, value: profiler_config(json_object(value), line.known),
    "--instance-role": instance_role,
    "--redundant-experts-num": redundant_experts_num,
    **dict.fromkeys(ATTENTION_GROUPS, attn_dp_size),
}
