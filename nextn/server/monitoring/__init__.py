"""Monitoring of a running server: metrics, the request log, traces, profiles."""
