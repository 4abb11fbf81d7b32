"""Suspects that shipped: kernels and model code out of released engines, run in a process of their own."""
