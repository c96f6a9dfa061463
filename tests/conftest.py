"""For every test: hypothesis does not hold against a test that the machine was busy while it ran."""

from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
