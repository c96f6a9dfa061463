"""README and docs as a reader follows them: every block that is marked runs as it is written, and prints what
the page shows, in shape (tests/support/walkthrough.py has the marks)."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.all_cases import few_or_all
from support.walkthrough import DEFAULT_PORT, Entry, OneServer, Walkthrough, entries

from nextn.ops.cpu.library import FOLDER

ROOT = Path(__file__).parents[2]
PAGES = {
    page: marked
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    if (marked := list(entries(page.read_text(encoding="utf-8"))))
}
BENCHMARKING = ROOT / "docs" / "benchmarking.md"  # test_notebook.py runs what it shows
OTHERS = [page for page in PAGES if page != BENCHMARKING]
LABEL = re.compile(r"^ *(\w[\w/ ]*?)(?:  |:)", re.M)

pytestmark = pytest.mark.skipif(not list(FOLDER.glob("*.so")), reason="pages show the native kernels")


@pytest.fixture(scope="module")
def server() -> Iterator[OneServer]:
    made = OneServer()
    yield made
    made.end()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder that looks like the checkout after `make demo`; what a page writes lands there."""
    for path in ROOT.iterdir():
        if not path.name.startswith("."):
            (tmp_path / path.name).symlink_to(path)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    return tmp_path


def check(entry: Entry, output: str) -> None:
    """JSON with the keys that the page shows; or the labels that it shows at the beginning of lines."""
    shown = entry.shown.strip()
    if shown[:1] in ("{", "["):
        (found,) = [json.loads(line) for line in output.splitlines() if line[:1] in ("{", "[")]
        assert keys(json.dumps(found)) >= keys(shown)
    elif entry.kind != "python":
        assert set(LABEL.findall(output)) >= set(LABEL.findall(shown)), output


def keys(text: str) -> set[str]:
    """Of JSON, which may be cut off."""
    return set(re.findall(r'(?<!\\)"(\w+)": ?', text))


def test_the_pages_show_the_default_port() -> None:
    assert f"http://127.0.0.1:{DEFAULT_PORT}" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", few_or_all(OTHERS, [BENCHMARKING]), ids=lambda page: str(page.relative_to(ROOT))
)
def test_a_page_runs(page: Path, checkout: Path, server: OneServer) -> None:
    with Walkthrough(checkout, server) as reader:
        for entry in PAGES[page]:
            ran = reader.enter(entry)
            assert ran.code == 0, f"{entry.text}\n{ran.output}"
            check(entry, ran.output)
            if "activate" in entry.text:
                assert reader.enter(Entry("console", "type -P nextn")).code == 0
            if entry.kind == "python" and "print(" in entry.text:
                assert ran.output.strip(), entry.text


def test_what_is_marked() -> None:
    page = (
        "<!-- serve: --port 1 -->\n<!-- run -->\n```console\n$ a \\\n  b\nx  1\n$ nextn serve\n```\n"
        "```console\n$ c\n```\n<!-- run -->\n```python\nd\n```\n"
    )
    assert list(entries(page)) == [
        Entry("serve", "nextn serve --port 1"),
        Entry("console", "a \\\n  b", shown="x  1\n"),
        Entry("serve", "nextn serve"),
        Entry("python", "d\n"),
    ]
    with pytest.raises(ValueError, match="no block of console or python"):
        list(entries("<!-- run -->\ntext\n"))
