"""Settings for all tests.

A test does not fail in hypothesis because the machine was busy, and has fewer examples unless all cases run.
Files that engines keep for their next start are kept for this run only. Processes can be interrupted even if
the tests run in the background. Certificates are read once. Without a GPU triton interprets kernels. Files
with slow tests come first.
"""

import functools
import os
import signal
import ssl
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from support.all_cases import ALL_CASES

# A background job of a shell, and every process that it starts, ignores SIGINT. A handler is not inherited.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# httpx.get and httpx.post read the machine's certificates in every call, in 20 to 60 ms of CPU time; tests
# call them again and again until a server is ready.
ssl.create_default_context = functools.cache(ssl.create_default_context)  # type: ignore[assignment]

settings.register_profile("patient", deadline=None, max_examples=100 if ALL_CASES else 30)
settings.load_profile("patient")

_CACHE = tempfile.TemporaryDirectory(prefix="nextn-cache-")
os.environ["XDG_CACHE_HOME"] = _CACHE.name
# A file stands where engines make a folder, so they do not measure the kernels' arithmetic. Tests compare
# engines, to the bit, with models that they build themselves, which use the level's default.
Path(_CACHE.name, "nextn").mkdir()
Path(_CACHE.name, "nextn", "kernels").touch()

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before any module imports triton, which transformers may do
    if find_spec("triton"):
        from support.interpreter import patched_once, sums_in_any_order

        sums_in_any_order()
        patched_once()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Processes share the files. With slow files first, none has a slow file left when the others have
    ended."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
