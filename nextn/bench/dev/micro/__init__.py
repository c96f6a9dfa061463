"""Ops and whole steps against the roofline. Start at `run.py`."""
