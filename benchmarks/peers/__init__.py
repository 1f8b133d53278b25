"""Millrace beside its peers: ``python -m benchmarks.peers`` (or ``make bench-peers``) prints one table."""
