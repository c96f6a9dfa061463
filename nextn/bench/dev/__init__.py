"""Benchmarks for nextn's developers: ops and whole steps (`micro`), and configurations (`sweep`)."""
