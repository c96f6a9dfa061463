"""`nextn bench micro`: ops and whole steps measured against the roofline. Start reading at `run.py`."""
