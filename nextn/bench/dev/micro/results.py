"""The results of `nextn bench micro` as plain data. The last line, the tables and the plot are made from
it."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

import torch

from nextn.bench.dev.micro.arithmetic import Shares
from nextn.bench.dev.micro.bound import Bound
from nextn.bench.dev.micro.cases import OpCase
from nextn.bench.dev.micro.ceilings import Ceilings
from nextn.bench.dev.micro.gather import Gather
from nextn.bench.dev.micro.rank_steps import RankSteps
from nextn.bench.dev.micro.steps import StepMeasurement
from nextn.bench.machine import Machine
from nextn.bench.results import rounded

OF_BACKEND = (
    "linear_1row_bw_frac", "linear_4row_over_1row", "linear_256row_over_onednn", "step_1row_bw_frac",
    "step_overhead_ms",
)  # fmt: skip


@dataclass(frozen=True)
class OpMeasurement:
    """One op at one number of rows. dtype: format of its weights. us: microseconds. bw_frac, flop_frac:
    fractions of the measured ceilings. roofline: the minimum time by both ceilings over the measured time.
    model: these times, see `bound`. arithmetic: shares of the operations."""

    op: str
    what: str
    shape: str
    rows: int
    backend: str
    dtype: str
    us: float
    bytes: int
    flops: int
    gb_s: float
    gflop_s: float
    bw_frac: float
    flop_frac: float
    roofline: float
    model: Bound
    arithmetic: Shares

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"model": self.model.as_dict(), "arithmetic": dict(self.arithmetic)}


@dataclass(frozen=True)
class Micro:
    model: str
    dtype: str  # of the engine's steps
    backend: str  # the engine's: "cpu" (native) or "reference"
    cpu_isa: str | None  # level of the native kernels
    threads: int
    quick: bool
    machine: Machine
    ceilings: Ceilings
    headline: list[OpMeasurement]  # the linear of the headline numbers
    ops: list[OpMeasurement]
    steps: list[StepMeasurement]
    reference: (
        StepMeasurement | None
    )  # the step of one row on plain torch, if the engine runs another backend
    gather: Gather | None  # of the hidden states of a row, in f32; None without the native kernels
    ranks: list[RankSteps] | None  # None without the native kernels, or if the model cannot be divided
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """The record for results. The first keys are the headline numbers; scripts read them by name."""
        return {
            **self.headline_values(self.backend, self.steps[0]),
            "model": self.model,
            "backend": self.backend,
            "cpu_isa": self.cpu_isa,
            "dtype": self.dtype,
            "linear_dtype": self.headline[0].dtype,
            "threads": self.threads,
            "quick": self.quick,
            "unrest": self.ceilings.unrest,
            "gather": self.gather and {"bytes": self.gather.bytes, "us": self.gather.seconds * 1e6},
            "ranks": self.ranks and [steps.as_dict() for steps in self.ranks],
            "machine": dataclasses.asdict(self.machine),
            "seconds": self.seconds,
            "ceilings": self.ceilings.as_dict(),
            "reference": self.reference_headline(),
            "linear": [op.as_dict() for op in self.headline],
            "steps": [self.step(step) for step in self.steps],
            "ops": [op.as_dict() for op in self.ops],
        }

    def as_json(self) -> str:
        """JSON on one line."""
        return json.dumps(rounded(self.as_dict()), allow_nan=False)

    def reference_headline(self) -> dict[str, Any] | None:
        """The headline numbers of plain torch, which serves if the kernels are not built."""
        if self.reference is None:
            return None
        found = self.headline_values("reference", self.reference)
        return {key: found[key] for key in OF_BACKEND} | {"step": self.step(self.reference)}

    def headline_values(self, backend: str, step: StepMeasurement) -> dict[str, float]:
        """The headline numbers: ceilings, the headline linear (its weights are not in the cache), and the
        step of one row. At 256 rows the linear is compared with oneDNN's product of the same shape, not with
        the peak."""
        dtype = self.headline[0].dtype
        linear = {op.rows: op for op in self.headline if (op.backend, op.dtype) == (backend, dtype)}
        same_shape = self.ceilings.bf16[-1].flops_per_s / 1e9
        return {
            "read_gb_s": self.ceilings.read_bytes_per_s / 1e9,
            "onednn_gflop_s": self.ceilings.flops_per_s(torch.bfloat16) / 1e9,
            "linear_1row_bw_frac": linear[1].bw_frac,
            "linear_4row_over_1row": linear[4].us / linear[1].us,
            "linear_256row_over_onednn": linear[256].gflop_s / same_shape,
            "step_1row_bw_frac": step.work.bytes / step.seconds / self.ceilings.read_bytes_per_s,
            "step_overhead_ms": step.overhead * 1e3,
        }

    def step(self, step: StepMeasurement) -> dict[str, Any]:
        read, peak = self.ceilings.read_bytes_per_s, self.ceilings.peak(step.shares)
        work, seconds = step.work, step.seconds
        bound = Bound.of(work, seconds, read, peak)
        return {
            "name": step.name,
            "dtype": str(step.dtype).removeprefix("torch."),
            "rows": step.rows,
            "context": step.end,
            "ms": seconds * 1e3,
            "ms_in_ops": step.in_ops * 1e3,
            "overhead_ms": step.overhead * 1e3,
            "tokens": step.committed,
            "experts": step.experts,
            "bytes": work.bytes,
            "flops": work.flops,
            "gb_s": work.bytes / seconds / 1e9,
            "gflop_s": work.flops / seconds / 1e9,
            "bw_frac": work.bytes / seconds / read,
            "flop_frac": work.flops / seconds / peak,
            "roofline": 1 / bound.over_max,
            "model": bound.as_dict(),
            "arithmetic": dict(step.shares),
            "ops": {
                op: {"calls": step.calls[op], "ms": took * 1e3}
                for op, took in sorted(step.ops.items(), key=lambda item: -item[1])
            },
            "steps": step.steps,
        }


def op_measurements(cases: list[OpCase], ceilings: Ceilings) -> list[OpMeasurement]:
    read = ceilings.read_bytes_per_s
    found = []
    for one in cases:
        case, peak = one.case, ceilings.peak(one.shares)
        bound = Bound.of(case.work, case.seconds, read, peak)
        found.append(
            OpMeasurement(
                op=one.op,
                what=one.what,
                shape=one.shape,
                rows=one.rows,
                backend=one.backend,
                dtype=one.weights,
                us=case.seconds * 1e6,
                bytes=case.work.bytes,
                flops=case.work.flops,
                gb_s=case.bytes_per_s / 1e9,
                gflop_s=case.flops_per_s / 1e9,
                bw_frac=case.bytes_per_s / read,
                flop_frac=case.flops_per_s / peak,
                roofline=1 / bound.over_max,
                model=bound,
                arithmetic=one.shares,
            )
        )
    return found
