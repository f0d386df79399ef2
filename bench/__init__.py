"""Benchmarks: each prints the figures it measured."""
