"""The minimum time of some work, from its bytes and its operations, compared with its measured time. Pure.

If reading and arithmetic run at the same time, the minimum is the larger of their times. If one waits for the
other, the minimum is their sum. The measured time over each of these shows what the work waits for:

    over max near 1       the larger of the two, at full speed
    over sum near 1       reading and arithmetic in turn: each piece is read completely before it is used
    over sum well above   other work: small calls, the cost of starting, instructions that compute nothing
"""

from __future__ import annotations

from dataclasses import dataclass

from nextn.bench.dev.micro.op_work import Work

NEAR = 1.1  # a measured time up to this multiple of a minimum counts as near it


@dataclass(frozen=True)
class Bound:
    """Times in seconds. reading: bytes over the read bandwidth. arithmetic: operations over the peak."""

    reading: float
    arithmetic: float
    measured: float

    @staticmethod
    def of(work: Work, measured: float, bytes_per_s: float, flops_per_s: float) -> Bound:
        return Bound(work.bytes / bytes_per_s, work.flops / flops_per_s, measured)

    @property
    def longer(self) -> float:
        return max(self.reading, self.arithmetic)

    @property
    def sum(self) -> float:
        return self.reading + self.arithmetic

    @property
    def over_max(self) -> float:
        """The measured time over the larger minimum. Below 1 if the bytes came from a cache."""
        return self.measured / self.longer

    @property
    def over_sum(self) -> float:
        return self.measured / self.sum

    @property
    def waits_for(self) -> str:
        if self.over_max <= NEAR:
            return "reading" if self.reading >= self.arithmetic else "arithmetic"
        return "both in turn" if self.over_sum <= NEAR else "other work"

    def as_dict(self) -> dict[str, float | str]:
        """The record for results, in milliseconds."""
        return {
            "read_ms": self.reading * 1e3,
            "arithmetic_ms": self.arithmetic * 1e3,
            "max_ms": self.longer * 1e3,
            "sum_ms": self.sum * 1e3,
            "measured_ms": self.measured * 1e3,
            "over_max": self.over_max,
            "over_sum": self.over_sum,
            "waits_for": self.waits_for,
        }
