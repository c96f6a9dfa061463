"""Submits a request's choices to the engine, and turns their outputs into answers and streams."""
