"""The engine's parts against the roofline: every op, and whole steps. Start at `run.py`."""
