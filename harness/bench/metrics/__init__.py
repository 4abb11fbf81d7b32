"""Metrics of a benchmark run, as pure functions of its records. Definitions and sources: docs/metrics.md."""
