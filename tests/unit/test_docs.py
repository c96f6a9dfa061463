"""README and docs: links lead somewhere, named files exist, commands parse, sentences are short and in the
field's words, and docs/reading.md is as long as it says."""

from __future__ import annotations

import argparse
import ast
import fnmatch
import importlib
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from support import markdown

from nextn import cli
from nextn.cli import options
from nextn.server_config import ServerConfig

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FOLDERS = ("benchmarks", "csrc", "docs", "examples", "nextn", "recipes", "tests")
GUIDES = [
    page
    for folder in ("benchmarks", "examples", "recipes")
    for page in sorted((ROOT / folder).glob("*/README.md"))
]
RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*.md"))
MOST_WORDS = 40
# Words that only this project used. The field's are confidence, step cost, exploration budget,
# deferred extend, window, random numbers, output, results.
HOUSE_WORDS = {
    "dice", "figures", "leads", "news", "owed", "owes", "pace", "purse", "ration", "stretch", "stretches",
    "tells", "told", "trust",
}  # fmt: skip
SOURCES = {".cpp", ".h", ".ipynb", ".jinja", ".py", ".sh"}
OF_OTHERS = {"export_deepseek_nextn.py", "export_mtp.py"}  # SGLang's and xLLM's


def each(pages: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("page", pages, ids=[str(page.relative_to(ROOT)) for page in pages])


@cache
def repository() -> frozenset[str]:
    """Paths of the repository's files and, with a slash at the end, folders, relative to its root."""
    paths = [path for path in ROOT.iterdir() if path.is_file()]
    paths += [path for folder in FOLDERS for path in (ROOT / folder, *(ROOT / folder).rglob("*"))]
    return frozenset(f"{path.relative_to(ROOT)}{'/' if path.is_dir() else ''}" for path in paths)


def test_sentences() -> None:
    """The reader of these tests: what is a sentence, and what is none."""
    page = (
        "# Title\n\nOne `a. b` here. Two\n[goes on. Even](x.md)!\n\n| no. sentence. |\n\n"
        "```\nno. code.\n```\n1. An item."
    )
    assert list(markdown.sentences(page)) == ["One CODE here.", "Two goes on.", "Even!", "An item."]
    assert markdown.words("a 12 - 1.5 (b)") == ["a", "12", "1.5", "(b)"]


@each(PAGES + GUIDES)
def test_sentences_are_short(page: Path) -> None:
    found = markdown.sentences(page.read_text(encoding="utf-8"))
    assert [s for s in found if len(markdown.words(s)) > MOST_WORDS] == []


@each(PAGES + GUIDES)
def test_words_are_those_of_the_field(page: Path) -> None:
    text = re.sub(
        r"\]\([^)]*\)", "", markdown.CODE.sub("", markdown.without_code_blocks(page.read_text("utf-8")))
    )
    assert [line for line in text.splitlines() if HOUSE_WORDS & set(re.findall(r"\w+", line.lower()))] == []


@each(PAGES + GUIDES)
def test_a_page_begins_with_what_it_answers(page: Path) -> None:
    title, _, rest = page.read_text(encoding="utf-8").partition("\n")
    assert title.startswith("# ")
    first = rest.strip().partition("\n\n")[0]
    assert list(markdown.sentences(first)), "a paragraph has to follow the title"


@each([*PAGES, *GUIDES, ROOT / "CHANGELOG.md"])
def test_links(page: Path) -> None:
    wrong = []
    for link in markdown.links(page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if link.startswith(("http://", "https://")):
            continue
        named = anchor and target.suffix == ".md" and target.exists()
        if not target.exists() or (
            named and anchor not in markdown.anchors(target.read_text(encoding="utf-8"))
        ):
            wrong.append(link)
    assert wrong == []


def is_there(name: str, folder: str) -> bool:
    """Whether a path is in the repository: from its root, from the page's folder, or as the end of one."""
    name = name.removeprefix("./")
    pattern = re.sub(r"\{[^}]*\}|NAME", "*", name)
    return any(
        fnmatch.fnmatch(path, p) for path in repository() for p in (pattern, f"*/{pattern}", folder + pattern)
    )


def names_of_files(text: str) -> Iterator[str]:
    for code in markdown.code_words(text):
        name = code.partition(":")[0]
        source = re.fullmatch(r"[\w./*-]+", name) and Path(name).suffix in SOURCES
        if (source or re.fullmatch(rf"(?:{'|'.join(FOLDERS)})/[\w./*-]*", name)) and name not in OF_OTHERS:
            yield name


def test_names_of_files() -> None:
    found = list(names_of_files("`nextn/x.py:f` and `python a.py`, `config.json`, `docs/`, `c*.h`"))
    assert found == ["nextn/x.py", "docs/", "c*.h"]
    assert is_there("docs/", "")
    assert is_there("engine/engine.py", "")
    assert not is_there("engine/none.py", "")


@each(PAGES + GUIDES)
def test_named_files_exist(page: Path) -> None:
    folder = f"{page.parent.relative_to(ROOT)}/"
    named = set(names_of_files(page.read_text(encoding="utf-8")))
    assert sorted(name for name in named if not is_there(name, folder)) == []


def commands(text: str) -> Iterator[list[str]]:
    """The words of each `nextn ...` and `make ...` in code, without `$`, variables and comments. In a block
    of "console" only lines with a `$` are commands."""
    lines = [code for code in markdown.code_words(text) if " --" in code and "…" not in code]
    for language, content in markdown.code_blocks(text):
        for line in content.replace("\\\n", " ").splitlines():
            if language != "console" or line.startswith("$ "):
                lines.append(line.removeprefix("$ "))
    for line in lines:
        line = re.sub(r" *[&<|>]( .*)?$", "", re.sub(r"^([A-Z_]+=\S+ )+", "", line.strip()))
        if re.match(r"(nextn|make) [a-z]", line):
            yield shlex.split(line, comments=True)


def parse(words: list[str]) -> None:
    """As `nextn` does before it runs anything. A wrong command line exits."""
    command = importlib.import_module(cli.COMMANDS[words[1]])
    parser = cli.Parser(prog=f"nextn {words[1]}", allow_abbrev=False)
    command.add_arguments(parser)
    args = parser.parse_args([cli.dashed(word) for word in words[2:]])
    after = getattr(args, "server_options", [])
    for config in (args if words[1] == "serve" else None, serve_options(after) if after else None):
        if config is not None:
            options.parse(config, ServerConfig)


def serve_options(words: list[str]) -> argparse.Namespace:
    parser = cli.Parser(prog="nextn serve", allow_abbrev=False)
    options.add_options(parser, ServerConfig)
    return parser.parse_args(words)


def test_a_wrong_command_does_not_parse() -> None:
    (good, bad) = commands(
        "```console\n$ A=b nextn serve --port 1 &  # on\n$ nextn serve \\\n  --prot 1\n```\n"
    )
    parse(good)
    with pytest.raises(SystemExit):
        parse(bad)


@each([*PAGES, *GUIDES, *RESULTS, ROOT / "CHANGELOG.md", ROOT / "nextn" / "data" / "README.md"])
def test_commands_parse(page: Path) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    for words in commands(page.read_text(encoding="utf-8")):
        if words[0] == "make":
            assert "-C" in words or {word for word in words[1:] if "=" not in word} <= set(targets)
        else:
            parse(words)


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from parsers(below)


def helps() -> Iterator[str]:
    """The docstring of each module of a command, and what each `--help` says in sentences."""
    for path in sorted((ROOT / "nextn" / "cli").rglob("*.py")):
        yield ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    for name, module in cli.COMMANDS.items():
        command = importlib.import_module(module)
        top = cli.Parser(prog=f"nextn {name}", description=command.HELP, allow_abbrev=False)
        command.add_arguments(top)
        for parser in parsers(top):
            yield from (parser.description or "", parser.epilog or "")
            yield from (action.help or "" for action in parser._actions)


def test_commands_in_helps_parse() -> None:
    """Those on lines of their own, and those in backticks."""
    found = 0
    for text in helps():
        lines = [line for line in text.splitlines() if re.match(r" *nextn [^:]*($| --)", line)]
        for words in commands("\n".join([text, "```", *lines, "```"])):
            parse(words)
            found += 1
    assert found > 20


@each(PAGES)
def test_python_in_code_blocks_is_python(page: Path) -> None:
    for language, content in markdown.code_blocks(page.read_text(encoding="utf-8")):
        if language == "python":
            ast.parse(content)


def test_the_packages_of_the_architecture_page() -> None:
    """It has a row for every package, and for no other."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)/[^`]*` \|", text.partition("## The packages")[2], re.M)
    packages = {path.parent.name for path in (ROOT / "nextn").glob("*/__init__.py")}
    assert set(rows) == packages | {"csrc"}


def test_the_path_through_the_code() -> None:
    """docs/reading.md: its files exist, none comes twice, and they have no more lines than the page says."""
    text = (ROOT / "docs" / "reading.md").read_text(encoding="utf-8")
    path = re.findall(r"^\| `(nextn/[\w/]+\.py)` \|", text, re.M)
    assert len(path) == len(set(path)) > 20
    assert [name for name in path if not (ROOT / name).is_file()] == []
    (most,) = {int(number.replace(",", "")) for number in re.findall(r"at most ([\d,]+) lines", text)}
    total = sum(len((ROOT / name).read_text(encoding="utf-8").splitlines()) for name in path)
    assert total <= most <= 3500, f"the files have {total} lines"
