"""For every test: hypothesis does not hold against a test that the machine was busy while it ran, and what
engines keep for their next start is kept for this run alone."""

import os
import tempfile

from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

_CACHE = tempfile.TemporaryDirectory(prefix="nextn-cache-")
os.environ["XDG_CACHE_HOME"] = _CACHE.name
