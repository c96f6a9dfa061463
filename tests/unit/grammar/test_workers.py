"""Jobs that kill, block or swell the processes that try them: each ends in its own error, others go on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.processes import runs
from support.server_process import until

from nextn.grammar.fair_queue import Source
from nextn.grammar.limits import MIB, Limits
from nextn.grammar.workers import LONG_SECONDS, Workers

LIMITS = Limits(seconds=60, memory=64 * MIB)  # 8 MiB each, 32 to compile
SOURCE = Source()
linux = pytest.mark.skipif(sys.platform != "linux", reason="it is measured and limited on Linux")


@pytest.fixture
def make():
    made = []

    def make_one(limits=LIMITS, **options):
        made.append(Workers("support.scripted_trial:make", options, limits))
        return made[-1]

    yield make_one
    for workers in made:
        workers.close()


@pytest.fixture(scope="module")
def workers():
    shared = Workers("support.scripted_trial:make", {}, LIMITS)
    yield shared
    shared.close()


def submit(workers, **job):
    return workers.submit(job, SOURCE)


def submit_by(workers, name, **job):
    return workers.submit(job, Source.of(name))


def refused(workers, **job):
    error = submit(workers, **job).exception(30)
    assert type(error) is ValueError
    assert_it_goes_on(workers)
    return str(error)


def assert_it_goes_on(workers):
    for done in [submit(workers) for _ in range(5)]:
        assert done.result(30).text == "é"


def pid_in(file):
    until(lambda: file.exists() and file.read_text())
    return int(file.read_text())


@pytest.mark.parametrize("long", [0, 1, 300_000])
def test_answers(workers, long):
    assert submit(workers, long=long).result(30).text == "é" * long


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (signal.SIGSEGV, "it is nested or linked too deeply"),
        (signal.SIGXCPU, r"it takes more than 60 s to compile \(--grammar-compile-timeout\)"),
        (signal.SIGABRT, r"it takes more than 32 MiB to compile, 4/8 of --grammar-memory-mb \(64\)"),
        (signal.SIGKILL, r"the library failed on it \(exit code -9\)"),
    ],
    ids=lambda x: x.name if isinstance(x, signal.Signals) else "",
)
def test_a_death_is_its_job_s(workers, number, message):
    assert re.fullmatch(message, refused(workers, do="die", signal=number))


def test_an_error_is_its_job_s(workers):
    assert refused(workers, do="refuse") == "it is no good"
    assert refused(workers, do="panic") == "the library failed on it: a panic"


@linux
def test_memory(workers):
    assert "it takes more than 32 MiB to compile" in refused(workers, mib=200)
    small, large = submit(workers).result(30).bytes, submit(workers, mib=6).result(30).bytes
    assert small < MIB // 4
    assert 5 * MIB <= large < 7 * MIB
    for _ in range(30):  # a child that keeps what it took is followed by another
        assert_it_goes_on(workers)


def test_an_overrun_ends_and_others_go_on(make, tmp_path):
    workers = make(Limits(0.3, LIMITS.memory))
    file = tmp_path / "pid"
    hanging = submit(workers, do="hang", pid=str(file))
    error = hanging.exception(30)
    assert str(error) == "it takes more than 0.3 s to compile (--grammar-compile-timeout)"
    pid = pid_in(file)
    until(lambda: not runs(pid))
    assert_it_goes_on(workers)


def test_one_that_takes_long_leaves_room_for_others(workers, tmp_path):
    waiting = submit(workers, do="wait", **{"for": str(tmp_path / "go")})
    assert_it_goes_on(workers)
    assert not waiting.done()
    (tmp_path / "go").touch()
    assert waiting.result(30).text == "é"


def test_one_client_does_not_hold_all_of_them(workers, tmp_path):
    """Its jobs take as long as any may; others need not wait for that."""
    go = tmp_path / "go"
    many = [
        submit_by(workers, "a 1", do="wait", pid=str(tmp_path / f"{i}"), **{"for": str(go)}) for i in (0, 1)
    ]
    for i in (0, 1):
        pid_in(tmp_path / f"{i}")
    more = submit_by(workers, "a 1")
    for name in ("a 2", "b 1", "a 2", "b 1"):
        assert submit_by(workers, name).result(30).text == "é"
    assert not any(each.done() for each in (*many, more))  # its own wait for each other
    go.touch()
    assert [each.result(30).text for each in (*many, more)] == ["é"] * 3


def test_what_has_to_wait_for_its_own_puts_off_nobody(workers, tmp_path):
    go, mine = tmp_path / "go", tmp_path / "mine"
    many = [submit_by(workers, "a 1", do="wait", **{"for": str(go)}) for _ in (0, 1)]
    assert submit_by(workers, "c 1").result(30).text == "é"
    other = submit_by(workers, "b 1", do="wait", pid=str(tmp_path / "b"), **{"for": str(mine)})
    pid = pid_in(tmp_path / "b")
    many += [submit_by(workers, "a 1") for _ in (0, 1)]
    time.sleep(1.5 * LONG_SECONDS)
    assert runs(pid)
    mine.touch()
    assert other.result(30).text == "é"
    assert pid_in(tmp_path / "b") == pid
    go.touch()
    assert [each.result(30).text for each in many] == ["é"] * 4


def test_alone_it_may_hold_all_of_them(workers, tmp_path):
    go = tmp_path / "go"
    many = [
        submit_by(workers, "a 1", do="wait", pid=str(tmp_path / f"{i}"), **{"for": str(go)}) for i in (0, 1)
    ]
    pids = [pid_in(tmp_path / f"{i}") for i in (0, 1)]
    more = submit_by(workers, "a 1")
    time.sleep(1.5 * LONG_SECONDS)
    assert all(map(runs, pids))
    go.touch()
    assert [each.result(30).text for each in (*many, more)] == ["é"] * 3
    assert [pid_in(tmp_path / f"{i}") for i in (0, 1)] == pids


def test_what_was_put_off_ends_when_nobody_waits_for_it(workers, tmp_path):
    many = [submit_by(workers, f"a {i}", do="hang", pid=str(tmp_path / f"{i}")) for i in range(4)]
    assert submit_by(workers, "b 1").result(30).text == "é"
    for each in many:
        assert each.cancel()
    assert not workers._later
    assert submit_by(workers, "a 1").result(30).text == "é"
    until(lambda: not any(runs(int(f.read_text() or 0)) for f in tmp_path.iterdir()))


def test_a_job_that_nobody_waits_for_is_ended(workers, tmp_path):
    files = [tmp_path / "1", tmp_path / "2"]
    running = [submit(workers, do="hang", pid=str(file)) for file in files]
    pids = [pid_in(file) for file in files]
    queued = submit(workers, do="hang", pid=str(tmp_path / "3"))
    other = submit(workers)
    assert queued.cancel()
    assert not other.done()
    for each in running:
        assert each.cancel()
    assert other.result(30).text == "é"
    until(lambda: not any(map(runs, pids)))
    assert not (tmp_path / "3").exists()


def test_the_parent_s_end(make, tmp_path):
    workers = make()
    running = submit(workers, do="hang", pid=str(tmp_path / "pid"))
    child = pid_in(tmp_path / "pid")
    os.kill(workers.pid, signal.SIGKILL)
    assert isinstance(running.exception(30), ValueError)
    until(lambda: not runs(child))
    assert_it_goes_on(workers)


def test_a_library_that_cannot_be_loaded(make):
    workers = make(fail=True)
    for _ in range(2):
        assert isinstance(submit(workers).exception(30), ValueError)


def test_close_ends_everything(make, tmp_path):
    workers = make()
    submit(workers, do="hang", pid=str(tmp_path / "pid"))
    pids = [pid_in(tmp_path / "pid"), workers.pid]
    workers.close()
    until(lambda: not any(map(runs, pids)))


def test_they_end_with_whoever_started_them(tmp_path):
    """However that ended."""
    code = (
        "import sys, time; from nextn.grammar.workers import Workers; "
        "from nextn.grammar.limits import Limits; "
        "from nextn.grammar.fair_queue import Source; sys.path.append(sys.argv[2]); "
        "w = Workers('support.scripted_trial:make', {}, Limits(60, 2**26)); "
        "w.submit({'do': 'hang', 'pid': sys.argv[1]}, Source()); time.sleep(60)"
    )
    tests = str(Path(__file__).parents[2])
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "pid"), tests]) as process:
        pid = pid_in(tmp_path / "pid")
        process.kill()
    until(lambda: not runs(pid))


def test_they_load_no_more_than_they_need():
    code = (
        "import sys, nextn.grammar.worker, nextn.grammar.trial, nextn.grammar.llguidance_backend; "
        "sys.exit(not {'torch', 'fastapi', 'pydantic', 'zmq'}.isdisjoint(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
