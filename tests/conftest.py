"""For every test: hypothesis does not hold against a test that the machine was busy while it ran, what
engines keep for their next start is kept for this run alone, and without a GPU triton interprets kernels."""

import os
import tempfile

import torch
from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

_CACHE = tempfile.TemporaryDirectory(prefix="nextn-cache-")
os.environ["XDG_CACHE_HOME"] = _CACHE.name

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports triton, as transformers may
