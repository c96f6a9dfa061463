"""What a server prints when it is ready: facts of its engines, and its address."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence

import nextn
from nextn.server.process.messages import Ready
from nextn.server_config import ServerConfig


def announce(
    config: ServerConfig,
    readies: Sequence[Ready],
    listener: socket.socket,
    bootstrap: socket.socket | None = None,
) -> None:
    """Prints the engines' startup facts, and then the line with the server's address."""
    print(f"nextn {nextn.__version__}")
    host = f"[{config.host}]" if ":" in config.host else config.host
    said = merge_startups([ready.startup for ready in readies], config.attention_dp > 1)
    if config.disaggregation_mode != "null":
        said["disaggregation"] = disaggregation_line(config, host, bootstrap)
    for line in startup_lines(said):
        print(f"  {line}")
    num_steps = readies[0].num_steps
    drafts = "auto" if num_steps is None else num_steps
    drafter = " and ".join(["MTP"] * config.speculation.mtp + ["n-gram"] * config.speculation.ngrams)
    mtp = f"{drafter} {drafts} drafts" if drafts else "no MTP"
    url = f"http://{host}:{listener.getsockname()[1]}"
    several = "groups" if config.attention_dp > 1 else "replicas"
    engines = f" on {config.dp_size} {several}" if config.dp_size > 1 else ""
    print(f"nextn is ready on {url} (model {config.model_name}, {mtp}{engines})", flush=True)


def disaggregation_line(config: ServerConfig, host: str, bootstrap: socket.socket | None) -> str:
    backend = f"transfer backend {config.disaggregation_transfer_backend}"
    if bootstrap is None:
        return f"{config.disaggregation_mode}, {backend}, fallback {config.disaggregation_fallback}"
    at = f"{host}:{bootstrap.getsockname()[1]}"
    return f"{config.disaggregation_mode}, {backend}, bootstrap port at {at}"


def merge_startups(startups: Sequence[Mapping[str, object]], groups: bool = False) -> dict[str, object]:
    """Merges the startup facts of several replicas or groups. If their times differ, takes the longest. If
    other facts differ, lists all of them."""
    first = startups[0]
    if len(startups) == 1:
        return dict(first)
    said: dict[str, object] = {"replicas": f"{len(startups)}, each with:"}
    if groups:
        said = {"groups": f"{len(startups)} (DP attention), each with:"}
    for name in first:
        values = [startup.get(name) for startup in startups]
        if name.endswith("_seconds"):
            said[name] = max(seconds for seconds in values if isinstance(seconds, float))
        else:
            alike = all(value == values[0] for value in values)
            said[name] = values[0] if alike else " / ".join(map(str, values))
    return said


def startup_lines(startup: Mapping[str, object]) -> Iterator[str]:
    width = max(map(len, startup), default=0)
    for name, value in startup.items():
        words = [word for word in name.split("_") if word not in ("bytes", "seconds")]
        shown = str(value)
        if "bytes" in name and isinstance(value, int):
            shown = f"{value / 2**20:.1f} MiB"
        elif "seconds" in name and isinstance(value, float):
            shown = f"{value:.1f} s"
        elif name == "ranks":
            shown += ", each with:"
        yield f"{' '.join(words):{width}}  {shown}"
