"""What people and machines see of a running server: metrics, the request log, traces."""
