"""Turns a checked request into the engine's input: token ids, constraints, stop regexes."""
