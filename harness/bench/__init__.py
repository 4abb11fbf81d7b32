"""Serving benchmarks: load, metrics, statistics, history."""
