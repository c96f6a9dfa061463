"""Decode steps that run on a CUDA device as one graph each. They give the same results as `Runner`, and the
host never waits for the device. Skipped without a device."""

import os

import pytest
import torch

from nextn.bench.prompts import heldout_prompts
from nextn.cutoff import Cutoff
from nextn.engine.device_runner import DeviceTicket
from nextn.kvcache.pool import KVPool
from nextn.llm import LLM
from nextn.request import SamplingParams

if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)
pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("TRITON_INTERPRET=1 is for the CPU", allow_module_level=True)

from support.device_steps import Job, make_runner, same_results, serve, small_model
from support.engine_runs import runner_of
from support.step_numbers import many

from nextn.sampling.row_draws import Choosing
from nextn.speculative.device.graphs import OneByOne, StepGraphs, graph_bytes
from nextn.speculative.device.relay import Relay
from nextn.speculative.device.shape import Drafting, StepShape
from nextn.speculative.device.step import DeviceStep

pytestmark = pytest.mark.gpu
GREEDY = SamplingParams(max_tokens=40, temperature=0, ignore_eos=True)
HOT = SamplingParams(max_tokens=40, temperature=1.0, seed=2**63 + 5, stream=3, ignore_eos=True)
FILTERED = SamplingParams(max_tokens=40, temperature=0.8, seed=7, top_p=0.9, top_k=50, ignore_eos=True)
CUTOFF = Cutoff(
    (0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99),
    row_cost=0.5,
    mean_rate=0.8,
    guess_cost=0.1,
    pass_cost=0.3,
)
ALL = [[GREEDY] * 4, [HOT] * 4, [GREEDY, HOT, FILTERED, GREEDY]]
NAMES = ["greedy", "sampled", "filtered"]


def jobs(params, num_steps=3, **rest):
    prompts = [[3, 9, 4], [5], [7] * 21, [1, 2, 3, 4, 5]]
    return [Job(p, q, num_steps, **rest) for p, q in zip(prompts, params, strict=True)]


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def model(request):
    return small_model(ops="triton", dtype=getattr(torch, request.param), device="cuda")


@pytest.mark.parametrize("ahead", [False, True], ids=["step by step", "ahead"])
@pytest.mark.parametrize("passes", [OneByOne, StepGraphs])
@pytest.mark.parametrize("params", ALL, ids=NAMES)
def test_results_are_those_of_a_runner(model, params, passes, ahead):
    for num_steps, cut in ((3, False), (5, True), (0, False)):
        plain, device = (jobs(params, num_steps, cut=cut) for _ in range(2))
        serve(make_runner(model, on_device=False), plain, cutoff=CUTOFF)
        serve(make_runner(model, passes=passes), device, ahead, cutoff=CUTOFF)
        assert [a.tokens for a in plain] == [b.tokens for b in device]
        if not ahead:
            assert all(same_results(b.results, a.results) for a, b in zip(plain, device, strict=True))


@pytest.mark.parametrize("params", ALL, ids=NAMES)
def test_no_launch_waits_for_the_device(model, params):
    runner = make_runner(model, passes=StepGraphs)
    serve(runner, jobs(params), ahead=True)  # this captures graphs, which may wait
    launch, strict = runner.launch, 0

    def watched(plan):
        nonlocal strict
        if any(span.start == 0 for span in plan.spans):  # steps with prompts may wait
            return launch(plan)
        strict += 1
        torch.cuda.set_sync_debug_mode("error")
        try:
            ticket = launch(plan)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert isinstance(ticket, DeviceTicket)
        return ticket

    runner.launch = watched
    serve(runner, jobs(params), ahead=True)
    assert strict > 10


@pytest.mark.parametrize("count", [1, 7, 100, 512])
def test_numbers_between_passes_are_those_of_plain_code(count):
    many(count)


def test_memory_of_a_graph_is_given_back(model):
    pool = KVPool(3, 1, 16, model.cache_layout, model.dtype, model.device)
    step = DeviceStep(model, pool, Relay(64, 64, model.device), 64)
    shape = StepShape(64, 256, Drafting(3, True), Choosing.FILTERED, 2048)
    assert graph_bytes(step, shape) > 0
    before, _ = torch.cuda.mem_get_info()
    assert graph_bytes(step, shape) > 0
    after, _ = torch.cuda.mem_get_info()
    assert abs(after - before) < 64 << 20


def llm(drafts, **options):
    return LLM(
        device="cuda", kernel_backend="triton", speculative_num_steps=drafts, kv_cache_tokens=32768,
        check_integrity=True, **options,
    )  # fmt: skip


def ids(model, params):
    encode = model.tokenizer.encode
    prompts = [*(encode(p)[:100] for p in heldout_prompts(3)), encode("".join(heldout_prompts(8)))[:700]]
    return [c.token_ids for c in model.generate(prompts, params)]


@pytest.mark.parametrize("dtype", ["auto", "float32"])
@pytest.mark.parametrize("params", ALL, ids=NAMES)
def test_an_engine_has_the_texts_of_the_general_way(params, dtype):
    general = llm(2, dtype=dtype)
    runner_of(general.engine).end_on_device()
    want = ids(general, params)
    for drafts in (0, 2, 5, "auto"):
        model = llm(drafts, dtype=dtype)
        assert runner_of(model.engine).step is not None, "the check at start found a difference"
        assert ids(model, params) == want
    few = llm(2, dtype=dtype, max_running_requests=2)
    assert ids(few, params) == want
