"""Decode steps that run on the device as wholes, in tensor code of fixed shapes."""
