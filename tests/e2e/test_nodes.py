"""Ranks on two machines: the text of one, what happens when a rank is gone, and what is said when the
machines do not fit together."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from support.all_cases import few_or_all
from support.nodes import Machines, free_address, two_machines
from support.server_process import ServerProcess, check_ended, until
from support.two_replicas import by_rank

from nextn.cli import main
from nextn.config import EngineConfig
from nextn.engine.engine import Engine
from nextn.engine.node import run_node
from nextn.llm import LLM
from nextn.ops.cpu.library import NoLibrary, library
from nextn.request import SamplingParams

PROMPT = "def read(path):\n"
BODY = {"prompt": PROMPT, "max_tokens": 48, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module", autouse=True)
def native() -> None:
    try:
        library()
    except NoLibrary as e:
        pytest.skip(f"no native kernels: {e}")


@pytest.fixture(scope="module")
def text() -> str:
    params = SamplingParams(max_tokens=48, temperature=0.0, ignore_eos=True)
    return LLM(speculative_num_steps=0, threads=1).generate([PROMPT], params)[0].text


@pytest.fixture
def machines() -> Iterator[Machines]:
    with two_machines() as made:
        yield made


def node(rank: int, address: str, *options: str, prefix: tuple[str, ...] | list[str] = ()) -> ServerProcess:
    words = ("-m", "nextn", "serve", "--port", "0", "--tp-size", "2", "--threads", "1", "--nnodes", "2")
    where = ("--node-rank", str(rank), "--dist-init-addr", address, "--step-cost-cache", "off")
    return ServerProcess([*words, *where, *options], prefix=prefix)


def completion(server: ServerProcess, **changes: int) -> str:
    """ "" where it ends in an error."""
    answer = httpx.post(server.url + "/v1/completions", json={**BODY, **changes}, timeout=60)
    return str(answer.json()["choices"][0]["text"]) if answer.status_code == 200 else ""


def healthy(server: ServerProcess) -> bool:
    return httpx.get(server.url + "/health", timeout=10).status_code == 200


def ranks_of(other: ServerProcess) -> list[int]:
    """Rank processes of a node."""
    found = []
    for pid in other.session():
        if b"nextn.engine.tensor_rank" in Path(f"/proc/{pid}/cmdline").read_bytes():
            found.append(pid)
    return found


GROUPS = ("--dp-size", "2", "--enable-dp-attention", "--ep-size", "2")
EXPERTS = ("--tp-size", "2", "--ep-size", "2", "--ep-num-redundant-experts", "2")
BALANCED = ("--enable-eplb", "--eplb-rebalance-num-iterations", "4", "--speculative-num-steps", "2")


def test_a_group_on_each_of_two_machines(machines: Machines, text: str) -> None:
    """When a process of one group is gone, requests of all end in errors, and all begin again. They end
    together."""

    def both(**changes: int) -> list[str]:
        with ThreadPoolExecutor(2) as threads:
            return [*threads.map(lambda g: completion(server, routed_dp_rank=g, **changes), (0, 1))]

    def end(what: str) -> None:
        until(lambda: min(by_rank(server, "nextn:num_running_reqs")) == 1)
        if what == "stopped rank":
            os.kill(ranks_of(others[-1])[0], signal.SIGSTOP)
        else:
            others.pop().kill()

    others = [node(1, machines.address, *GROUPS, prefix=machines.other)]
    with node(0, machines.address, *GROUPS) as server:
        try:
            for what in few_or_all(["stopped rank"], ["killed machine"]):
                assert both() == [text] * 2
                with ThreadPoolExecutor(1) as threads:
                    killing = threads.submit(end, what)
                    assert both(max_tokens=2000) == ["", ""]
                    killing.result()
                if not others:
                    others.append(node(1, machines.address, *GROUPS, prefix=machines.other))
                until(lambda: healthy(server), 60)
            assert both() == [text] * 2
            assert min(by_rank(server, "nextn:rank_wait_seconds_total")) > 0
            assert min(by_rank(server, "nextn:rank_sent_bytes_total")) > 0
            server.process.terminate()
            check_ended(server, 0)
            assert others[0].wait(60) == 0
            until(lambda: others[0].session() == [])
            assert any("the engine has ended" in line for line in others[0].stderr)
        finally:
            for other in others:
                other.kill()


CONFIG = EngineConfig(
    tp_size=2, nnodes=2, dist_timeout=60.0, threads=1, kv_cache_tokens=16, step_cost_cache="off",
    speculative_num_steps=8, speculative_eagle_topk=4, speculative_num_draft_tokens=20,
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "the KV pool holds 16 tokens, too few for trees"),
        ({"page_size": 8}, "--page-size is 16 on rank 0 and 8 on rank 1: all ranks need the same"),
    ],
)
def test_machines_that_do_not_fit(changes: dict[str, int], said: str) -> None:
    """One error on each; neither waits for the other. (More that differs:
    tests/unit/distributed/test_rendezvous.py and tests/unit/engine/test_facts.py.)"""
    config = replace(CONFIG, dist_init_addr=free_address())
    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(run_node, replace(config, node_rank=1, **changes))  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=said):
            Engine(config)
        assert other.result(60) == 1


def test_a_machine_that_never_comes() -> None:
    with pytest.raises(TimeoutError, match=r"waited 1 s for rank 1 at .*--dist-timeout"):
        Engine(replace(CONFIG, dist_init_addr=free_address(), dist_timeout=1.0))


def test_torchrun(text: str) -> None:
    """The two ranks of one engine, which share experts; these move."""
    words = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-endpoint", free_address())
    options = ("--port", "0", "--threads", "1", "--step-cost-cache", "off", *EXPERTS, *BALANCED)
    with ServerProcess([*words, "-m", "nextn", "serve", *options]) as server:
        assert completion(server) == text
        metrics = server.metrics()
        assert metrics["nextn:spec_accept_length"] > 1
        assert metrics["nextn:rank_wait_seconds_total"] > 0
        assert metrics["nextn:rank_sent_bytes_total"] > 0
        assert metrics["nextn:expert_load_imbalance"] >= 1
        until(lambda: any("experts move in" in line for line in server.stderr), 10)
        server.interrupt()
        server.wait(60)
        until(lambda: server.session() == [], 30)


def test_a_node_needs_serve(capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--nnodes", "2", "--node-rank", "1", "--tp-size", "2", "--dist-init-addr", "a:1"]
    assert main(["generate", *where, "x"]) == 2
    assert "--node-rank 1: only nextn serve runs the ranks of other nodes" in capsys.readouterr().err
