"""Measurements: ``python -m benchmarks`` (or ``make bench``) prints them; docs/performance.md keeps them."""
