"""Ranks on two machines: the text of one, what happens when a rank is gone, and the errors when machines do
not fit together or never come."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from support.all_cases import ALL_CASES, few_or_all
from support.nodes import Machines, free_address, two_machines
from support.processes import children, command
from support.server_process import ServerProcess, check_ended, in_background, until
from support.two_replicas import by_rank

from nextn.cli import main
from nextn.config import EngineConfig
from nextn.distributed.group import PeerGone
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


@pytest.mark.skipif(not ALL_CASES, reason="test_a_group_on_each_of_two_machines has all but the last rank")
def test_two_machines_serve_the_text_of_one(machines: Machines, text: str) -> None:
    """And again after a rank was killed, and after one was stopped. They end together."""
    other = node(1, machines.address, prefix=machines.other)
    with node(0, machines.address) as server:
        try:
            assert completion(server) == text
            assert server.metrics()["nextn:rank_wait_seconds_total"] > 0
            for how in (signal.SIGKILL, signal.SIGSTOP):
                gone = ranks_of(other)[0]
                os.kill(gone, how)
                until(lambda: not healthy(server), 60)
                until(lambda: healthy(server), 60)
                assert completion(server) == text
                assert gone not in other.session()
            server.process.terminate()
            check_ended(server, 0)
            assert other.wait(60) == 0
            until(lambda: other.session() == [])
            assert any("the engine has ended" in line for line in other.stderr)
        finally:
            other.kill()


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


def test_sizes_that_do_not_fit() -> None:
    """One error on each machine; neither waits for the other."""
    config = replace(CONFIG, dist_init_addr=free_address())
    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(run_node, replace(config, node_rank=1))
        with pytest.raises(ValueError, match="the KV pool holds 16 tokens, too few for trees"):
            Engine(config)
        assert other.result(60) == 1


SMALL_TREE = (
    "--speculative-num-steps", "8", "--speculative-eagle-topk", "4", "--speculative-num-draft-tokens", "20",
    "--kv-cache-tokens", "16",
)  # fmt: skip
SAME = ": all ranks need the same"


@pytest.mark.parametrize(
    ("both", "differs", "said"),
    few_or_all(
        [((), ("--page-size", "32"), "--page-size is 16 on rank 0 and 32 on rank 1" + SAME)],
        [
            (
                GROUPS,
                ("--page-size", "32"),
                "--page-size is 16 on the engine of group 0 and 32 on rank 1" + SAME,
            ),
            ((), GROUPS[:3], "--dp-size with --enable-dp-attention is 1 on rank 0 and 2 on rank 1" + SAME),
            (("--tp-size", "6"), (), "the model's 4 heads cannot be divided by it"),
            (SMALL_TREE, (), "the KV pool holds 16 tokens, too few for trees"),
        ],
    ),
)
def test_servers_that_do_not_fit(both: tuple[str, ...], differs: tuple[str, ...], said: str) -> None:
    """differs: options of node 1 alone. (More that differs: tests/unit/distributed/test_rendezvous.py and
    tests/unit/engine/test_facts.py.)"""
    address = free_address()
    check_refusal([node(1, address, *both, *differs), node(0, address, *both)], said)


def check_refusal(servers: Sequence[ServerProcess], *said: str) -> None:
    """Each ends with exit code 1, says it in one line, and leaves no process."""
    try:
        for each in servers:
            assert each.wait(90) == 1  # a loaded machine takes long to start so many processes
            until(lambda each=each: each.session() == [])  # type: ignore[misc]
            assert not any("Traceback" in line for line in each.stderr), each.stderr
            found = [line for line in each.stderr if said[0] in line]
            assert len(found) == 1, each.stderr
            assert all(words in found[0] for words in said)
    finally:
        for each in servers:
            each.kill()


def test_a_machine_that_never_comes() -> None:
    with pytest.raises(TimeoutError, match=r"waited 1 s for rank 1 at .*--dist-timeout"):
        Engine(replace(CONFIG, dist_init_addr=free_address(), dist_timeout=1.0))


def test_a_rank_that_ends_while_others_are_waited_for() -> None:
    """Rank 1, on the machine of rank 0. Rank 2's machine never comes."""

    def end() -> None:
        until(lambda: any(b"tensor_rank" in command(pid) for pid in children(os.getpid())))
        for pid in children(os.getpid()):
            if b"tensor_rank" in command(pid):
                os.kill(pid, signal.SIGKILL)

    in_background(end)
    with pytest.raises(PeerGone, match=r"rank 1 has ended \(signal 9\) while others were waited for"):
        Engine(replace(CONFIG, tp_size=4, dist_init_addr=free_address()))
    assert not any(b"tensor_rank" in command(pid) for pid in children(os.getpid()))


@pytest.mark.skipif(not ALL_CASES, reason="test_a_machine_that_never_comes has it without a server")
@pytest.mark.parametrize("groups", [(), GROUPS])
def test_a_server_whose_other_node_never_comes(groups: tuple[str, ...]) -> None:
    server = node(0, free_address(), "--dist-timeout", "5", *groups)
    check_refusal([server], "waited 5 s for ", "rank 1 at", "--dist-timeout")


@pytest.mark.skipif(not ALL_CASES, reason="tests/unit/distributed/test_rendezvous.py has it without a server")
def test_a_server_whose_node_0_never_comes() -> None:
    check_refusal([node(1, free_address(), "--dist-timeout", "2")], "node 1 has found no rank 0")


@pytest.mark.skipif(not ALL_CASES, reason="tests/unit/distributed/test_rendezvous.py has it without a server")
@pytest.mark.parametrize("groups", [(), GROUPS])
def test_a_server_whose_address_is_taken(groups: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = node(0, f"127.0.0.1:{taken.getsockname()[1]}", *groups)
        check_refusal([server], "is taken", "give another --dist-init-addr to every node")


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
