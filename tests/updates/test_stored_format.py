"""Records that were written once are read for ever: one of each type and kind of chunk, as bytes."""

from __future__ import annotations

import hashlib
from base64 import b64decode
from dataclasses import dataclass

import numpy as np
import pytest

from theta_daemon.registry import registry
from theta_daemon.tensor import DTYPES, TensorSpec, Words
from theta_daemon.testing.updates import BytesRecord


@dataclass(frozen=True)
class Stored:
    """A record, and the value it must give on top of `previous_words`."""

    update: str
    dtype: str
    record: str
    value: str
    """The first sixteen digits of the SHA-256 of its bytes."""


def previous_words(dtype: str) -> Words:
    """Twelve rows of ten: multiples of a sixty-fourth around zero."""
    words: Words = ((np.arange(120) - 50) / 64).astype("<f4").view("<u4")
    return (words >> np.uint32(16)).astype("<u2") if dtype == "BF16" else words


STORED = (
    Stored(
        "dense",
        "F32",
        "AQABAACRiYF5cWlhWVFJQTkxKSEZEQkB8eHRwbGhkYFxYVFBMSERAeHBoYFhQSEBwYFBAYEBAQAAAIAAQIDAACBAYICgwOAAECAwQFBgcICQoLDA0ODwAAgQGCAoMDhASFBYYGhweICIkJigqLC4wMjQ2ODo8PgABAgMEBQCMQAAACi1L/0geEUBAOB+fn18e3t7e3p6eQB5enp7e3t7fH1+f39/f39/BhAAjfQrb3Ydm9uzAAAAAQQAAAEAAAA=",
        "639e53357a76d33b",
    ),
    Stored("constant", "F32", "AQQBAAAAPL8=", "ee247ae7500165a7"),
    Stored("sparse", "F32", "AQQAAAALAAAAAAMuAEMBAAEAAQABAAEAAElRWWEBfh8AAAABBAAAAQAAAA==", "a30850540570c373"),
    Stored(
        "sparse",
        "F32",
        "AgEAAQAAFBAMCAQA+PDo4NjQyMC4sKigmJCIgHhwaGBYUEhAODAoIBgQCADw4NDAsKCQgHBgUEAwIBAA4MCggGBAIADAgEAAgAAAAAEBgQFBgcEBIUFhgaHB4QERITFBUWFxgZGhscHR4fEBCREZISkxOUFJUVlhaXF5gYmRAjAAAAAotS/9IHg9AQDYf39/f39/fn18e3t7e3p6eQB5enp7e3t7fH1+BhAAnvQrb3Yda7azAAAAAQQAAAEAAAA=",
        "28d2c571acc49bbd",
    ),
    Stored("delta", "F32", "AwIUAAAAKLUv/SB4XQAAGAEBAgIAAlBRBLABAAEAAQAgAAAAAQQAAAEAAAA=", "c097b1028edf3c0e"),
    Stored(
        "delta",
        "F32",
        "AgEAAQAAFBAMCAQA+PDo4NjQyMC4sKigmJCIgHhwaGBYUEhAODAoIBgQCADw4NDAsKCQgHBgUEAwIBAA4MCggGBAIADAgEAAgAAAAAEBgQFBgcEBIUFhgaHB4QERITFBUWFxgZGhscHR4fEBCREZISkxOUFJUVlhaXF5gYmRAjAAAAAotS/9IHg9AQDYf39/f39/fn18e3t7e3p6eQB5enp7e3t7fH1+BhAAnvQrb3Yda7azAAAAAQQAAAEAAAA=",
        "28d2c571acc49bbd",
    ),
    Stored(
        "low-rank",
        "F32",
        "AQQDACoAAAAqAAAAAAAAACYAAAAAAAAAJQAAAAAAAAB7InJhbmsiOjEsInNjYWxlIjowLjUsInIiOiJGMzIiLCJjIjoiRjMyIn0BAAEAAAAAAIAAQIDAACBAYAAAfH19fn5+fn9/f38eAAAAAQQAAAEAAAABAAEAAAGBAQEAAACAAEAAfXx8ewB7fHx9fRoAAAABBAAAAQAAAAEBAAAACAAAAAEHAQABAAEAAQEBAAFZAX4ZAAAAAQQAAAEAAAA=",
        "a05c437ac9efb25c",
    ),
    Stored(
        "ia3",
        "F32",
        "AQQCABwAAAAmAAAAAAAAACUAAAAAAAAAeyJkdHlwZSI6IkYzMiIsInNoYXBlIjpbMTBdfQEAAQAAAAAAgABAgMAAIAAAfH19fn5+fn9/GgAAAAEEAAABAAAAAQEAAAAIAAAAAQcBAAEAAQABAQGAAS0BfhkAAAABBAAAAQAAAA==",
        "62c179405f13461d",
    ),
    Stored(
        "dense",
        "BF16",
        "AJGJgXlxaWFZUUlBOTEpIRkRCQHx4dHBsaGRgXFhUUExIREB4cGhgWFBIQHBgUEBgQEBAAAAgABAgMAAIEBggKDA4AAQIDBAUGBwgJCgsMDQ4PAACBAYICgwOEBIUFhgaHB4gIiQmKCosLjAyNDY4Ojw+AAECAwQFAIxAAAAKLUv/SB4RQEA4H5+fXx7e3t7enp5AHl6ent7e3t8fX5/f39/f38GEACN9Ctvdh2b268AAAABAgAAAQAAAA==",
        "d4d81de4b1aaa85b",
    ),
    Stored("constant", "BF16", "AQIBADy/", "4fcb8b3091909b54"),
    Stored("sparse", "BF16", "AQQAAAALAAAAAAMuAEMBAAEAAQAASVFZYQF+GwAAAAECAAABAAAA", "7dd99d7867567227"),
    Stored(
        "sparse",
        "BF16",
        "AgAUEAwIBAD48Ojg2NDIwLiwqKCYkIiAeHBoYFhQSEA4MCggGBAIAPDg0MCwoJCAcGBQQDAgEADgwKCAYEAgAMCAQACAAAAAAQGBAUGBwQEhQWGBocHhAREhMUFRYXGBkaGxwdHh8QEJERkhKTE5QUlRWWFpcXmBiZECMAAAACi1L/0geD0BANh/f39/f39+fXx7e3t7enp5AHl6ent7e3t8fX4GEACe9Ctvdh1rtq8AAAABAgAAAQAAAA==",
        "f2763a764db67275",
    ),
    Stored("delta", "BF16", "AwIUAAAAKLUv/SB4XQAAGAEBAgIAAlBRBLABABwAAAABAgAAAQAAAA==", "d638ccab7b67beb7"),
    Stored(
        "delta",
        "BF16",
        "AgAUEAwIBAD48Ojg2NDIwLiwqKCYkIiAeHBoYFhQSEA4MCggGBAIAPDg0MCwoJCAcGBQQDAgEADgwKCAYEAgAMCAQACAAAAAAQGBAUGBwQEhQWGBocHhAREhMUFRYXGBkaGxwdHh8QEJERkhKTE5QUlRWWFpcXmBiZECMAAAACi1L/0geD0BANh/f39/f39+fXx7e3t7enp5AHl6ent7e3t8fX4GEACe9Ctvdh1rtq8AAAABAgAAAQAAAA==",
        "f2763a764db67275",
    ),
    Stored(
        "low-rank",
        "BF16",
        "AQIDACoAAAAqAAAAAAAAACYAAAAAAAAAIQAAAAAAAAB7InJhbmsiOjEsInNjYWxlIjowLjUsInIiOiJGMzIiLCJjIjoiRjMyIn0BAAEAAAAAAIAAQIDAACBAYAAAfH19fn5+fn9/f38eAAAAAQQAAAEAAAABAAEAAAGBAQEAAACAAEAAfXx8ewB7fHx9fRoAAAABBAAAAQAAAAEBAAAACAAAAAEHAQABAAEAAVsBfhUAAAABAgAAAQAAAA==",
        "c534b6a702c69e6b",
    ),
    Stored(
        "ia3",
        "BF16",
        "AQICABwAAAAmAAAAAAAAACEAAAAAAAAAeyJkdHlwZSI6IkYzMiIsInNoYXBlIjpbMTBdfQEAAQAAAAAAgABAgMAAIAAAfH19fn5+fn9/GgAAAAEEAAABAAAAAQEAAAAIAAAAAQcBAAEAAQABLwF+FQAAAAECAAABAAAA",
        "f4acc95da9069fed",
    ),
)


@pytest.mark.parametrize("stored", STORED, ids=lambda stored: f"{stored.update}-{stored.dtype}-{len(stored.record)}")
def test_old_records_decode(stored: Stored) -> None:
    """The value's digest is what it was when the record was written."""
    spec = TensorSpec(DTYPES[stored.dtype], (12, 10))
    words = previous_words(stored.dtype)
    registry().update(stored.update).open(spec, BytesRecord(b64decode(stored.record))).apply(0, spec.words, words)
    assert hashlib.sha256(words.tobytes()).hexdigest()[:16] == stored.value
