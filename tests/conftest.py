"""For every test: hypothesis does not hold against a test that the machine was busy while it ran, what
engines keep for their next start is kept for this run alone, processes can be interrupted even if the tests
run in the background, and without a GPU triton interprets kernels. Files with slow tests come first."""

import os
import signal
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from hypothesis import settings

# A shell's job in the background, and all that it starts, ignores SIGINT. A handler is not inherited.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

_CACHE = tempfile.TemporaryDirectory(prefix="nextn-cache-")
os.environ["XDG_CACHE_HOME"] = _CACHE.name
# No folder can be made there, so engines do not measure the kernels' arithmetic: tests compare engines, to
# the bit, with models that they build themselves, which have the level's own.
Path(_CACHE.name, "nextn").mkdir()
Path(_CACHE.name, "nextn", "kernels").touch()

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports triton, as transformers may
    if find_spec("triton"):
        from support.interpreter import sums_in_any_order

        sums_in_any_order()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of processes that share the files, none is left with a slow one when the others have ended."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
