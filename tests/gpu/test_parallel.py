"""Ranks on CUDA devices: NCCL with one rank, in a graph and between GPUs; two ranks on one GPU by Gloo; the
same as ranks on two machines; and ranks and groups that share experts. Skipped without a device."""

import os
import signal
from dataclasses import replace

import pytest
import torch
from support.engine_runs import executor_of, go_on, request, run, runner_of
from support.exchanges import check_exchanges
from support.nodes import free_address as address_of
from support.nodes import ranks_of_other_nodes
from support.played_groups import tokens, two_groups
from support.sharing import CONFIG, all_steps, same, shared_model
from support.torch_ranks import check_gathers, finish, free_address, start_rank

from nextn.config import EngineConfig
from nextn.distributed.group import PeerGone
from nextn.distributed.torch_group import TorchGroup
from nextn.distributed.torch_world import TorchWorld
from nextn.engine.engine import Engine
from nextn.request import Request, SamplingParams
from nextn.server_config import ServerConfig

if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)
pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("TRITON_INTERPRET=1 is for the CPU", allow_module_level=True)

pytestmark = pytest.mark.gpu
CASES = [("triton", "bfloat16"), ("triton", "float32"), ("reference", "float32")]


@pytest.fixture
def nccl():
    torch.cuda.set_device(0)
    group = TorchGroup(0, 1, free_address(), "nccl")
    yield group
    group.close()


def test_nccl_moves_every_dtype(nccl):
    check_gathers(nccl, "cuda")


def test_nccl_in_a_graph_and_without_a_wait(nccl):
    """The host does not wait for the device, so a step can be captured."""
    whole = torch.zeros(4, 8, device="cuda", dtype=torch.bfloat16)
    nccl.gather(whole, (0, 8))  # NCCL connects in its first collective
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        nccl.gather(whole, (0, 8))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        doubled = whole * 2
        nccl.gather(doubled, (0, 8))
    whole.fill_(3)
    graph.replay()
    assert doubled.eq(6).all()


@pytest.mark.parametrize(("ops", "dtype"), CASES[:2])
def test_one_rank_by_nccl_has_the_bits_of_none(nccl, ops, dtype):
    """The model's graphs are captured with the group's collectives in them."""
    options = {"ops": ops, "dtype": getattr(torch, dtype), "device": "cuda"}
    want = all_steps(shared_model(CONFIG, **options))
    model = shared_model(CONFIG, nccl, **options)
    assert model.captures
    same(all_steps(model), want)


def hashes(size, ops, dtype, backend="gloo"):
    address = free_address()
    task = ("steps", "cuda", ops, dtype)
    return finish([start_rank(rank, size, address, *task, backend=backend) for rank in range(size)], 300)


@pytest.mark.parametrize(("ops", "dtype"), CASES)
def test_two_ranks_on_one_gpu_have_the_bits_of_one(ops, dtype):
    (want,) = hashes(1, ops, dtype)
    assert hashes(2, ops, dtype) == [want, want]


def world_hashes(shards, ops, dtype, backend="gloo"):
    """The results of two groups with one rank each."""
    address = free_address()
    task = ("world", "2", str(shards), "cuda", ops, dtype)
    return finish([start_rank(rank, 2, address, *task, backend=backend) for rank in range(2)], 300)


def group_hashes(ops, dtype):
    return [finish([start_rank(0, 1, free_address(), "one", g, "cuda", ops, dtype)], 300)[0] for g in "01"]


def test_nccl_exchanges_every_dtype(nccl):
    check_exchanges(TorchWorld(nccl, 1, 1), device="cuda")


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize(("ops", "dtype"), CASES)
def test_two_groups_on_one_gpu_have_the_bits_of_one(ops, dtype, shards):
    assert world_hashes(shards, ops, dtype) == group_hashes(ops, dtype)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device")
@pytest.mark.parametrize(("ops", "dtype"), CASES)
def test_two_groups_on_two_gpus_have_the_bits_of_one(ops, dtype):
    assert world_hashes(2, ops, dtype, "nccl") == group_hashes(ops, dtype)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device")
@pytest.mark.parametrize(("ops", "dtype"), CASES)
def test_two_gpus_have_the_bits_of_one(ops, dtype):
    (want,) = hashes(1, ops, dtype, "nccl")
    assert hashes(2, ops, dtype, "nccl") == [want, want]


CHOICES = [
    SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True),
    SamplingParams(max_tokens=40, temperature=1.0, seed=3, ignore_eos=True),
]
ONE = EngineConfig(
    device="cuda", kv_cache_tokens=4096, speculative_num_steps=2, check_integrity=True, step_cost_cache="off"
)
TWO = replace(ONE, tp_size=2)


def found_by(config):
    """(request, tokens) of each output of three requests. The number of tokens in a step shows how many
    drafts were accepted."""
    with ranks_of_other_nodes(config):
        engine = Engine(config)
        for name in "abc":
            engine.add(request(name, tokens=40))
        found = []
        while engine.has_work():
            found += [(out.rid, tuple(out.tokens)) for out in engine.step()]
        close(engine)
    return found


def close(engine):
    executor_of(engine).close()  # ends the thread that runs steps ahead
    if engine.config.tp_size > 1:
        runner_of(engine).close()


def on_two_nodes(config, monkeypatch):
    """The configuration for two nodes. If there are two GPUs, node 1 sees only the second; this process sees
    all."""
    torch.cuda.init()
    if (count := torch.cuda.device_count()) > 1:
        seen = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen.split(",")[1])
    return replace(config, nnodes=2, dist_init_addr=address_of("127.0.0.2"), dist_timeout=120.0)


def test_engines_of_one_and_two_ranks_find_the_same_text(monkeypatch):
    """With two GPUs by NCCL, else by Gloo. The second rank is on this machine, or on another."""
    want = found_by(ONE)
    assert found_by(TWO) == want
    assert found_by(on_two_nodes(TWO, monkeypatch)) == want


def test_ranks_that_share_experts_find_the_same_text(monkeypatch):
    """Experts move during the run. On one machine, and on two."""
    more = {"ep_num_redundant_experts": 2, "enable_eplb": True, "eplb_rebalance_num_iterations": 8}
    two, want = replace(TWO, ep_size=2, **more), found_by(ONE)
    assert found_by(two) == want
    assert found_by(on_two_nodes(two, monkeypatch)) == want


def jobs(group):
    return [Request(f"{group}.{n}", [5 + n, 6, 7], CHOICES[n]) for n in range(2)]


def test_groups_find_the_texts_of_one_engine():
    """First both groups have requests, then only one of them."""
    options = {"kv_cache_tokens": 4096, "speculative_num_steps": 2, "grammar_backend": "none"}
    config = ServerConfig(device="cuda", check_integrity=True, step_cost_cache="off", **options)
    one = Engine(config)
    want = [tokens(one, jobs(group)) for group in range(2)]
    close(one)
    config = replace(config, tp_size=2, dp_size=2, enable_dp_attention=True, ep_size=2)
    with two_groups(config) as (here, there):
        there.start(jobs(1))
        assert tokens(here, jobs(0)) == want[0]
        assert there.found(here) == want[1]
        assert tokens(here, jobs(1)) == want[1]
        there.start(jobs(0))
        assert there.found(here) == want[0]


def test_two_machines_agree_on_the_size_of_the_kv_pool(monkeypatch):
    """An engine checks at start that all ranks have the same size."""
    config = on_two_nodes(replace(TWO, kv_cache_tokens=None, mem_fraction_static=0.3), monkeypatch)
    with ranks_of_other_nodes(config):
        engine = Engine(config)
        engine.add(request("a", tokens=8))
        assert len(run(engine)) == 8
        close(engine)


@pytest.mark.skipif(torch.cuda.device_count() > 1, reason="with NCCL this process ends, too")
def test_a_rank_on_a_gpu_that_is_gone_ends_all():
    engine = Engine(TWO)
    [process] = runner_of(engine).processes.values()
    engine.add(request("a", tokens=900))
    engine.step()
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(PeerGone):
        go_on(engine)
    close(engine)
