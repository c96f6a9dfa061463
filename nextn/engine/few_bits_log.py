"""Log messages at start about weights that the checkpoint stores in few bits."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from nextn.families.config import ModelConfig
from nextn.families.files import first_names
from nextn.models.draft_folder import OPTION
from nextn.models.loader import LoadReport
from nextn.models.names import nextn_tensors
from nextn.ops.stored import FEW_BITS, FP8, Format

log = logging.getLogger("nextn.engine")


def log_blocks(stored: Mapping[str, Format], held: int, layers: int) -> None:
    """For a checkpoint in e4m3 blocks, on kernels that keep whole layers in blocks: logs how many layers."""
    if any(format.name == FP8 for format in stored.values()):
        log.info("weights in FP8 blocks: %d of %d layers are held as stored", held, layers)


def log_few_bits(stored: Mapping[str, Format], kept: Collection[str], report: LoadReport) -> None:
    """Logs the format that matrices in few bits are computed from, and how long their preparation took."""
    few = {name: format.name for name, format in stored.items() if format.name in FEW_BITS}
    if not few:
        return
    computed = Counter(kind for name, kind in few.items() if name in kept)
    others = Counter(kind for name, kind in few.items() if name not in kept)
    log.info(
        "weights of few bits: %s computed from as stored, %s widened; %.2f GB read and packed in %.1f s",
        _counts(computed), _counts(others), report.bytes / 1e9, report.seconds,
    )  # fmt: skip


def _counts(kinds: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()) or "none"


def say_what_is_widened(
    cfg: ModelConfig,
    nextn: int,
    stored: Mapping[str, Format],
    as_stored: Collection[str],
    widened: Sequence[str],
) -> None:
    """Logs which matrices that the checkpoint stores in few bits are widened, since users may not expect
    it."""
    names = [
        name for name in widened if not name.endswith(cfg.names.kv_up)
    ]  # these are in int8 in every model
    if names:
        log.info("%d matrices in a few bits are widened, as the kernels cannot read them as stored: %s",
                 len(names), first_names(names))  # fmt: skip
    kept = {stored[name].name for name in nextn_tensors(cfg, nextn) if name in stored and name in as_stored}
    if kept & FEW_BITS.keys():
        log.warning(
            "the NextN layer is stored as %s: few of its drafts are accepted if that is 4 bits. "
            "%s may name a folder with a plain one", ", ".join(sorted(kept)), OPTION,
        )  # fmt: skip
