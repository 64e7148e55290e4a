"""Measurements, one question a file."""
