"""The Triton kernels, and the engine with them, on a CUDA device. Skipped without a device."""

import json
import os
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from nextn.bench.prompts import heldout_prompts
from nextn.config import model_folder
from nextn.llm import LLM
from nextn.request import SamplingParams, SpeculativeParams

if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)
pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("TRITON_INTERPRET=1 is for the CPU", allow_module_level=True)

from support.checkpoints import quantize_tensors, write_checkpoint
from support.draft_folders import fp8_config
from support.draft_spans import Beside
from support.engine_runs import runner_of
from support.fp8_checks import FP8_CHECKS
from support.triton_checks import CHECKS, Device

from nextn.cutoff import Cutoff
from nextn.layers.batch import Span
from nextn.models.torch_model import TorchModel
from nextn.speculative.base import DraftRequest
from nextn.speculative.mtp import MTPDrafter

pytestmark = pytest.mark.gpu
GREEDY = SamplingParams(max_tokens=48, temperature=0, ignore_eos=True)
HOT = SamplingParams(max_tokens=48, temperature=1.0, seed=3, ignore_eos=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("check", CHECKS)
def test_op(check, dtype):
    CHECKS[check](Device("cuda", dtype, large=True))


@pytest.mark.skipif(torch.cuda.get_device_capability() < (8, 9), reason="e4m3 is widened there")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("check", FP8_CHECKS)
def test_op_with_e4m3_blocks(check, dtype):
    FP8_CHECKS[check](Device("cuda", dtype, large=True))


@pytest.mark.skipif(torch.cuda.get_device_capability() < (8, 9), reason="e4m3 is widened there")
def test_a_checkpoint_in_e4m3_blocks(tmp_path):
    """The weights stay as stored, and texts do not depend on drafts."""
    folder = model_folder("nextn-tiny")
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
    config = json.loads((folder / "config.json").read_text())
    write_checkpoint(tmp_path, fp8_config(config, 128), quantize_tensors(tensors))
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / file, tmp_path)
    model = llm(0, model_path=str(tmp_path))
    assert runner_of(model.engine).model.as_stored
    want = ids(model, GREEDY), ids(model, HOT)
    model = llm(3, model_path=str(tmp_path))
    assert (ids(model, GREEDY), ids(model, HOT)) == want


def llm(drafts, **options):
    return LLM(
        device="cuda", kernel_backend="triton", speculative_num_steps=drafts, kv_cache_tokens=32768,
        check_integrity=True, **options,
    )  # fmt: skip


def prompts(model, n=6):
    """Short prompts, and one whose keys are in two parts."""
    encode = model.tokenizer.encode
    long = encode("".join(heldout_prompts(8)))[:700]
    return [*(encode(p)[:100] for p in heldout_prompts(n)), long]


def ids(model, params, n=6):
    return [c.token_ids for c in model.generate(prompts(model, n), params)]


@pytest.mark.parametrize("dtype", ["auto", "float32"])
@pytest.mark.parametrize("params", [GREEDY, HOT], ids=["greedy", "seeded"])
def test_identity_over_drafts_trees_chunks_and_batch(params, dtype):
    plain = llm(0, dtype=dtype)
    assert plain.engine.startup["kernels"] == "triton"
    assert plain.engine.startup["dtype"] == ("float32" if dtype == "float32" else "bfloat16")
    want = ids(plain, params)
    alone = [plain.generate([p], params)[0].token_ids for p in prompts(plain)]
    assert alone == want
    assert ids(llm(2, dtype=dtype), params) == want
    assert ids(llm(3, dtype=dtype, chunked_prefill_size=16, max_running_requests=4), params) == want
    tree = {"speculative_eagle_topk": 2, "speculative_num_draft_tokens": 6}
    assert ids(llm(3, dtype=dtype, **tree), params) == want
    assert ids(llm(2, dtype=dtype, disable_radix_cache=True), params, n=1) == [want[0], want[-1]]


def test_parity_with_plain_torch():
    """Only the first tokens have to agree: plain torch adds in another order."""
    plain = LLM(device="cuda", kernel_backend="reference", speculative_num_steps=0, kv_cache_tokens=32768)
    want, got = ids(plain, GREEDY), ids(llm(2, dtype="float32"), GREEDY)
    assert sum(a[:8] == b[:8] for a, b in zip(want, got, strict=True)) >= len(want) - 1


@torch.inference_mode()
def test_a_graph_has_the_bits_of_its_kernels():
    runner = runner_of(llm(2).engine)
    model, pool = runner.model, runner.pool
    spans = [Span([5, 6, 7], 0, [3]), Span([9], 0, [4])]
    batch = model.batch(spans, pool.page_size)
    assert batch.total == 4
    numbers = batch.packed.cuda()
    want = TorchModel.forward(model, batch.on(numbers), pool)
    for _ in range(2):  # the first call captures the graph, the second replays it
        assert torch.equal(model.forward(batch, pool), want)
    states = want.clone()
    drafted = TorchModel.draft(model, batch.on(numbers), states, pool)
    assert torch.equal(model.draft(batch, states, pool), drafted)
    wide = [Span([i % 50 for i in range(600)], 0, list(range(5, 44))), *spans]
    rows = model.forward(model.batch(wide, pool.page_size), pool)  # too many rows for a graph
    assert torch.equal(rows[600:], want)


class Both:
    """Drafts every span twice and compares: with guesses chosen on the device, where possible, and by the
    host. cutoff: for all spans."""

    def __init__(self, drafter, cutoff=None):
        assert drafter.on_device is drafter.model
        plain = MTPDrafter(drafter.model, drafter.pool, drafter.shape, drafter.choose, plain=True)
        self.whole, self.plain = drafter, Beside(plain)
        self.cutoff, self.guesses = cutoff, 0

    def forget(self):
        pass

    def drop(self, state):
        self.whole.drop(state)
        self.plain.drop(state)

    def draft(self, request):
        spans = [replace(s, cutoff=self.cutoff) for s in request.spans]
        request = DraftRequest(request.hidden.clone(), spans)
        made, again = (d.draft(request) for d in (self.whole, self.plain))
        assert [list(d.tokens) for d in made.drafts] == [list(d.tokens) for d in again.drafts]
        if self.cutoff is None:
            assert [len(d) for d in made.drafts] == [s.num_steps for s in spans]
            assert (made.extended, list(made.passes)) == (again.extended, list(again.passes))
        assert all(d.bins.startswith(a.bins) for d, a in zip(made.drafts, again.drafts, strict=True))
        self.guesses += sum(len(d) for d in made.drafts)
        return made


def test_chains_chosen_on_the_device_are_those_that_the_host_chooses():
    model = llm(3)
    runner = runner_of(model.engine)
    runner.end_on_device()  # steps that are one graph use no drafter
    both = runner.drafter = Both(runner.drafter)
    some = SpeculativeParams(num_steps=1)
    asked = [
        GREEDY, HOT, SamplingParams(max_tokens=9, temperature=0, speculative=some),
        SamplingParams(max_tokens=9, temperature=0, repetition_penalty=1.2),
        SamplingParams(max_tokens=7, seed=5, speculative=SpeculativeParams(num_steps=0)), GREEDY, HOT,
    ]  # fmt: skip
    model.generate(prompts(model), asked)
    assert both.guesses


@pytest.mark.parametrize("params", [[GREEDY] * 7, [GREEDY, HOT] * 3 + [GREEDY]], ids=["greedy", "mixed"])
def test_chains_with_a_cutoff_are_too(params):
    rates = (0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99)
    model = llm(3)
    want = ids(llm(0), GREEDY)
    runner = runner_of(model.engine)
    runner.end_on_device()
    both = runner.drafter = Both(
        runner.drafter, Cutoff(rates, row_cost=0.6, mean_rate=0.8, guess_cost=0.2, pass_cost=0.9)
    )
    got = [c.token_ids for c in model.generate(prompts(model), params)]
    assert both.guesses
    assert [g for g, p in zip(got, params, strict=True) if p is GREEDY] == [
        w for w, p in zip(want, params, strict=True) if p is GREEDY
    ]
