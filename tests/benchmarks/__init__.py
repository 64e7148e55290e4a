"""Benchmarks measure what they say."""
