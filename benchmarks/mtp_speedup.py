"""Without and with MTP on the embedded model, through the server: the figures of the README.

    python benchmarks/mtp_speedup.py            # about three minutes; writes benchmarks/results/mtp_speedup.*

Both servers run in one session and take turns at every concurrency; see nextn/bench/demo.py for how it is
measured. The last line is JSON, the same that is written.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from nextn.bench.demo import Settings, run_demo
from nextn.config import EMBEDDED

RESULTS = Path(__file__).parent / "results"


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        settings = Settings(
            model_path=EMBEDDED, num_drafts=2, max_tokens=128, num_prompts=32, rounds=2, output_dir=out,
            bar=sys.stderr.isatty(),
        )  # fmt: skip
        code = run_demo(settings)
        RESULTS.mkdir(exist_ok=True)
        for source in (*out.glob("*.json"), *out.glob("*.png")):
            shutil.copy(source, RESULTS / f"mtp_speedup{source.suffix}")
    return code


if __name__ == "__main__":
    sys.exit(main())
