"""The variants that are measured: an engine, a number format and a number of MTP drafts.

A variant is written "vllm:bfloat16:mtp1". For a GGUF file, whose number formats are fixed: "nextn:gguf:mtp2".
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
OURS = "nextn"
GGUF = "gguf"


@dataclass(frozen=True)
class Engine:
    """dtypes: number formats; the first is the default. ready: a path in the engine's folder that exists if
    it is installed. gguf: whether it is measured on GGUF files."""

    dtypes: tuple[str, ...]
    mtp: bool
    ready: str
    gguf: bool = False

    def formats(self, gguf: bool) -> tuple[str, ...]:
        """The number formats that are measured, of a checkpoint folder or of a GGUF file."""
        if gguf:
            return (GGUF,) if self.gguf else ()
        return self.dtypes


ENGINES = {
    OURS: Engine(("float32", "bfloat16"), mtp=True, ready="", gguf=True),
    "transformers": Engine(("bfloat16", "float32"), mtp=False, ready="bin/python"),
    "llamacpp": Engine(("bfloat16",), mtp=True, ready="build/bin/llama-server", gguf=True),
    "vllm": Engine(("bfloat16",), mtp=True, ready="bin/python"),
}


@dataclass(frozen=True)
class Variant:
    engine: str
    dtype: str
    drafts: int  # MTP drafts per step; 0: off

    def __str__(self) -> str:
        return f"{self.engine}:{self.dtype}" + (f":mtp{self.drafts}" if self.drafts else "")

    @staticmethod
    def parse(text: str, gguf: bool = False) -> Variant:
        """Parses engine[:dtype][:mtpK]. gguf: whether the model is a GGUF file. Raises ValueError for an
        unknown or unsupported part."""
        name, *rest = text.split(":")
        engine, able = ENGINES.get(name), [n for n, e in ENGINES.items() if e.formats(gguf)]
        if engine is None or name not in able:
            what = "engine" if engine is None else "measurement of GGUF files with engine"
            raise ValueError(f"--engines {text}: there is no {what} {name!r}; choose from {', '.join(able)}")
        dtypes = engine.formats(gguf)
        dtype, drafts = dtypes[0], 0
        for part in rest:
            if part in dtypes:
                dtype = part
            elif engine.mtp and part.startswith("mtp") and part[3:].isdigit():
                drafts = int(part[3:])
            else:
                known = ", ".join((*dtypes, *(["mtpK"] if engine.mtp else [])))
                raise ValueError(f"--engines {text}: {name} cannot do {part!r}; it can do {known}")
        return Variant(name, dtype, drafts)

    @property
    def script(self) -> Path:
        return HERE / f"runner_{self.engine}.py"


def default_variants(drafts: int, gguf: bool = False) -> list[Variant]:
    """Every engine without MTP and with `drafts`: nextn in all its formats, the others in their default."""
    found: list[Variant] = []
    for name, engine in ENGINES.items():
        dtypes = engine.formats(gguf)
        for dtype in dtypes if name == OURS else dtypes[:1]:
            found.append(Variant(name, dtype, 0))
            if engine.mtp:
                found.append(Variant(name, dtype, drafts))
    return found


def interpreter(engine: str, folder: Path) -> Path | None:
    """The Python that runs an engine, or None if install.sh has not installed it below `folder`."""
    if engine == OURS:
        return Path(sys.executable)
    home = folder / engine
    return home / "bin" / "python" if (home / ENGINES[engine].ready).exists() else None


def environment(engine: str, folder: Path, threads: int, cores: list[int]) -> dict[str, str]:
    """Environment variables for an engine's process, in addition to the inherited ones."""
    found = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    more = _MORE.get(engine)
    return {**found, **(more(folder / engine, cores[:threads]) if more else {})}


def _vllm(home: Path, cores: list[int]) -> Mapping[str, str]:
    """The settings of vLLM's CPU guide. By default vLLM would reserve one core for its scheduler. Its MLA
    kernel for CPUs only supports DeepSeek's 512 + 64 dimensions, so attention uses expanded keys and
    values."""
    preload = [*sorted(home.glob("tcmalloc/**/libtcmalloc_minimal.so.4")), home / "lib" / "libiomp5.so"]
    return {
        "LD_PRELOAD": ":".join(str(library) for library in preload if library.exists()),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_MLA_DISABLE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "PATH": f"{home / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
    }


_MORE: dict[str, Callable[[Path, list[int]], Mapping[str, str]]] = {"vllm": _vllm}
