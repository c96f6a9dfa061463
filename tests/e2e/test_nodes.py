"""Ranks on two machines: the text of one, what happens when a rank is gone, and what is said when the
machines do not fit together."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from support.nodes import Machines, free_address, two_machines
from support.server_process import ServerProcess, check_ended, until
from support.two_replicas import by_rank

from nextn.cli import main
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


EXPERTS = ("--ep-size", "2", "--ep-num-redundant-experts", "2", "--speculative-num-steps", "2")
BALANCED = ("--enable-eplb", "--eplb-rebalance-num-iterations", "4")


def test_two_machines_share_experts(machines: Machines, text: str) -> None:
    """Which move while they serve. And again after an engine was killed in the middle of a step, and after a
    rank was stopped. They end together."""
    other = node(1, machines.address, *EXPERTS, *BALANCED, prefix=machines.other)
    with node(0, machines.address, *EXPERTS, *BALANCED) as server:
        try:
            for ends in ("engine", "rank", ""):
                assert [completion(server) for _ in range(3)] == [text] * 3
                metrics = server.metrics()
                assert metrics["nextn:spec_accept_length"] > 1
                assert metrics["nextn:rank_wait_seconds_total"] > 0
                assert metrics["nextn:rank_sent_bytes_total"] > 0
                assert metrics["nextn:expert_load_imbalance"] >= 1
                until(lambda: any("experts move in" in line for line in server.stderr), 10)
                server.stderr.clear()
                if ends == "engine":
                    with ThreadPoolExecutor(1) as threads:
                        cut_off = threads.submit(completion, server, max_tokens=1500)
                        until(lambda: server.metrics()["nextn:num_running_reqs"] == 1)
                        os.kill(server.engine_pid(), signal.SIGKILL)
                        assert cut_off.result() == ""
                    until(lambda: healthy(server), 60)
                if ends == "rank":
                    gone = ranks_of(other)[0]
                    os.kill(gone, signal.SIGSTOP)
                    until(lambda: not healthy(server), 60)
                    until(lambda: healthy(server), 60)
                    assert gone not in other.session()
            server.process.terminate()
            check_ended(server, 0)
            assert other.wait(60) == 0
            until(lambda: other.session() == [])
            assert any("the engine has ended" in line for line in other.stderr)
        finally:
            other.kill()


TREE = (
    "--speculative-num-steps",
    "8",
    "--speculative-eagle-topk",
    "4",
    "--speculative-num-draft-tokens",
    "20",
)
GROUPS = ("--dp-size", "2", "--enable-dp-attention", "--ep-size", "2")


def test_a_group_on_each_of_two_machines(machines: Machines, text: str) -> None:
    """When a process of one group is gone, requests of all end in errors, and all begin again."""

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
            for what in ("stopped rank", "killed machine"):
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
            for each in (server, others[0]):
                assert each.wait(60) == 0
                until(lambda each=each: each.session() == [])  # type: ignore[misc]
        finally:
            for other in others:
                other.kill()


# More of what differs, in tests/unit/distributed/test_rendezvous.py and tests/unit/engine/test_facts.py.
@pytest.mark.parametrize(
    ("both", "differs", "said"),
    [
        (GROUPS, ("--page-size", "32"), "--page-size is 16 on the engine of group 0 and 32 on rank 1"),
        ((), GROUPS[:3], "--dp-size with --enable-dp-attention is 1 on rank 0 and 2 on rank 1"),
    ],
)
def test_machines_that_do_not_fit(both: tuple[str, ...], differs: tuple[str, ...], said: str) -> None:
    """One error on each, and nothing is left."""
    check_refused(both, differs, f"{said}: all ranks need the same")


def test_sizes_that_do_not_fit() -> None:
    check_refused((*TREE, "--kv-cache-tokens", "16"), (), "the KV pool holds 16 tokens, too few for trees")


def check_refused(both: tuple[str, ...], differs: tuple[str, ...], said: str) -> None:
    """Both machines end with one error each and exit code 1. differs: options of node 1 alone."""
    address = free_address()
    other, server = node(1, address, *both, *differs), node(0, address, *both)
    try:
        for each in (other, server):
            check_refusal(each)
            assert len([line for line in each.stderr if said in line]) == 1, each.stderr
    finally:
        server.kill()
        other.kill()


def check_refusal(each: ServerProcess) -> None:
    assert each.wait(90) == 1  # a loaded machine takes long to start so many processes
    until(lambda: each.session() == [])
    assert not any("Traceback" in line for line in each.stderr), each.stderr


def test_a_machine_that_never_comes() -> None:
    server = node(0, free_address(), "--dist-timeout", "5", *GROUPS)
    check_refusal(server)
    [said] = [line for line in server.stderr if "waited 5 s for " in line and "rank 1 at" in line]
    assert "--dist-timeout" in said


def test_torchrun(text: str) -> None:
    words = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-endpoint", free_address())
    options = ("--port", "0", "--threads", "1", "--step-cost-cache", "off")
    with ServerProcess([*words, "-m", "nextn", "serve", *options]) as server:
        assert completion(server) == text
        server.interrupt()
        server.wait(60)
        until(lambda: server.session() == [], 30)


def test_a_node_needs_serve(capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--nnodes", "2", "--node-rank", "1", "--tp-size", "2", "--dist-init-addr", "a:1"]
    assert main(["generate", *where, "x"]) == 2
    assert "--node-rank 1: only nextn serve runs the ranks of other nodes" in capsys.readouterr().err
