"""nextn outside the checkout: a wheel with the native kernels inside, and an sdist that compiles them where a
compiler is. Each is installed in a fresh virtual environment and run from another folder.

Nothing is downloaded: an environment sees the packages of the one that runs the tests, but not this nextn.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from support.all_cases import ALL_CASES
from support.native_build import knows, the_build

from nextn.llm import LLM
from nextn.ops.cpu.library import FOLDER
from nextn.request import SamplingParams

ROOT = Path(__file__).parents[2]
PROMPT = "import os\n\n\ndef main("
SIZES = {"threads": 1, "kv_cache_tokens": 2048, "speculative_num_steps": 2}
RUN = f"""
import nextn
from nextn import LLM, SamplingParams
llm = LLM(**{SIZES})
print(nextn.__file__, llm.engine.startup["kernels"], llm.engine.startup.get("cpu_isa"), sep="\\n")
print(llm.generate([{PROMPT!r}], SamplingParams(max_tokens=4, temperature=0))[0].text)
"""
# Two compilers: one writes empty files for some levels, the other knows no vector instructions. Compiling
# takes long, so both hand out the library of the portable level that the checkout has of the same sources.
# The first reads these sources before, with all that they include.
QUICK_COMPILER = """#!/bin/sh
for out; do :; done
case "$out" in *portable.part) c++ "$@" -E && exec cp {library} "$out" || exit 1; esac
case "$out" in {parts}) : >"$out";; *) exec c++ "$@";; esac
"""
OLD_COMPILER = """#!/bin/sh
for out; do :; done
case "$*" in *-mavx*) exit 1;; esac
case "$out" in *portable.part) exec cp {library} "$out"; esac
exec c++ "$@"
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler"),
]


def execute(*command: str | Path, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "CXX")}
    done = subprocess.run(
        [str(word) for word in command], cwd=folder, env={**inherited, **environment},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def compiler(folder: Path, script: str, parts: str = "") -> str:
    """The path of a compiler."""
    path = folder / "c++"
    path.write_text(script.format(library=FOLDER / "libnextn_portable.so", parts=parts))
    path.chmod(0o755)
    return str(path)


def install(package: Path, folder: Path, **environment: str) -> Path:
    """The bin/ of a new environment in `folder` in which pip installed `package`."""
    venv.create(folder / "env", symlinks=True)
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = [path for path in sys.path if path.endswith("site-packages")]
    (folder / "env" / "lib" / name / "site-packages" / "tests.pth").write_text("\n".join(packages))
    python = folder / "env" / "bin" / "python"
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--ignore-installed", "--no-compile")
    execute(python, "-m", "pip", "install", "-q", *options, package, folder=folder, **environment)
    return python.parent


def text_of_the_checkout(**options: str) -> str:
    params = SamplingParams(max_tokens=4, temperature=0)
    return LLM(**SIZES, **options).generate([PROMPT], params)[0].text  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make dist` writes; the wheel, from the sdist, as an index's machines do."""
    folder = tmp_path_factory.mktemp("dist")
    command = (sys.executable, "-m", "hatchling", "build", "-d", folder, "-t")
    execute(*command, "sdist", folder=ROOT)
    (packed,) = folder.glob("*.tar.gz")
    with tarfile.open(packed) as archive:
        archive.extractall(folder / "source", filter="data")
    (source,) = (folder / "source").iterdir()
    parts = "|".join(f"*/libnextn_{level}.part" for level in levels() if level != "portable") or "none"
    execute(*command, "wheel", folder=source, CXX=compiler(folder, QUICK_COMPILER, parts))
    return folder


@pytest.fixture
def sdist(dist: Path) -> Path:
    (found,) = dist.glob("nextn-*.tar.gz")
    return found


def sources() -> set[str]:
    """Files of the package, without what is compiled."""
    found = {path for path in (ROOT / "nextn").rglob("*") if path.is_file() and path.parent != FOLDER}
    return {str(path.relative_to(ROOT)) for path in found if path.suffix != ".pyc"}


def levels() -> list[str]:
    """That the compiler knows, whatever this machine runs."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return ["portable"]
    return [level for level, flags in the_build().LEVELS.items() if knows(["c++"], flags)]


def test_a_wheel_has_the_kernels_of_its_platform(dist: Path, tmp_path: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    tag = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert wheel.name.endswith(f"-py3-none-{tag}.whl")
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    libraries = {str((FOLDER / f"libnextn_{level}.so").relative_to(ROOT)) for level in levels()}
    assert inside == sources() | libraries

    programs = install(wheel, tmp_path)
    for library in tmp_path.rglob("libnextn_*.so"):
        if library.stat().st_size == 0:
            library.unlink()  # as where that level was not built
    words = ("--max-tokens", "4", "--threads", "1", "--kv-cache-tokens", "2048", "--cpu-isa", "portable")
    done = execute(programs / "nextn", "generate", PROMPT, *words, folder=tmp_path)
    assert done.stdout == f"{PROMPT}{text_of_the_checkout(cpu_isa='portable')}\n"


def test_what_an_sdist_has(dist: Path, sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        folders = {name.split("/")[1] for name in archive.getnames()}
    (source,) = (dist / "source").iterdir()
    for path in (path for path in (ROOT / "csrc").iterdir() if path.suffix in (".h", ".cpp")):
        assert (source / "csrc" / path.name).read_bytes() == path.read_bytes()
    assert folders == {
        "nextn", "csrc", "hatch_build.py", "pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE",
        "PKG-INFO", ".gitignore",
    }  # fmt: skip


@pytest.mark.skipif(not ALL_CASES, reason="the wheel of the other test is compiled from the sdist, too")
def test_an_sdist_compiles_the_kernels(sdist: Path, tmp_path: Path) -> None:
    """With a compiler that knows no vector instructions."""
    programs = install(sdist, tmp_path, CXX=compiler(tmp_path, OLD_COMPILER))
    file, kernels, isa, text = execute(programs / "python", "-c", RUN, folder=tmp_path).stdout.split("\n", 3)
    assert Path(file).is_relative_to(tmp_path)
    assert (kernels, isa) == ("cpu", "portable")
    assert text == text_of_the_checkout(cpu_isa="portable") + "\n"


@pytest.mark.skipif(not ALL_CASES, reason="make test-all")
def test_an_sdist_installs_without_a_compiler(sdist: Path, tmp_path: Path) -> None:
    programs = install(sdist, tmp_path, PATH=str(tmp_path))
    done = execute(programs / "python", "-c", RUN, folder=tmp_path)
    file, kernels, _, text = done.stdout.split("\n", 3)
    assert Path(file).is_relative_to(tmp_path)
    assert kernels == "reference"
    assert text == text_of_the_checkout(kernel_backend="reference") + "\n"
    assert "without its native CPU kernels, about ten times slower" in done.stderr
    assert "install a C++17 compiler" in done.stderr
