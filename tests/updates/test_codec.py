"""Planes and zstd: what goes in comes out, and nothing read makes it allocate, hang or crash."""

from __future__ import annotations

import contextlib
import shutil
import struct
import sysconfig
import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from theta_daemon import codec
from theta_daemon.codec import CONSTANT, RAW, ZSTD, compress, decode_planes, decompress, encode_planes
from theta_daemon.errors import RecordError
from theta_daemon.tensor import CHUNK_WORDS, Words

WIDTHS = (1, 2, 4, 8)


def weights(count: int, width: int) -> Words:
    """Words that look like a trained tensor's: floats around zero (of one byte: their top bytes)."""
    floats = (np.random.default_rng(count).standard_normal(count) * 0.03).astype("<f4")
    words = floats.view("<u4")
    if width < 4:
        return (words >> (32 - 8 * width)).astype(f"<u{width}")
    return words.copy() if width == 4 else floats.astype("<f8").view("<u8")


def round_trip(words: Words, *, rotate: bool) -> bytes:
    data = encode_planes(words, rotate=rotate)
    out = np.full(words.size, 0x5A, words.dtype)
    decode_planes(data, out, rotate=rotate)
    assert out.tobytes() == words.tobytes()
    return data


@given(st.data())
def test_any_words_come_back(data: st.DataObject) -> None:
    """Every array of every width, rotated or not."""
    width = data.draw(st.sampled_from(WIDTHS))
    words = data.draw(hnp.arrays(f"<u{width}", st.integers(0, 300)))
    round_trip(words, rotate=data.draw(st.booleans()))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("count", [1, 63, 64, 65, 4096, 40_000, CHUNK_WORDS - 1, CHUNK_WORDS])
def test_chunks_of_all_lengths_come_back(width: int, count: int) -> None:
    """Sizes around the codec's own limits, up to a whole chunk."""
    round_trip(weights(count, width), rotate=True)
    round_trip(weights(count, width), rotate=False)


@pytest.mark.parametrize("width", WIDTHS)
def test_unaligned_and_read_only_input(width: int) -> None:
    """Words at an odd address of somebody's read-only buffer encode to the same bytes, and decode from one."""
    words = weights(5000, width)
    shifted = np.frombuffer(b"x" + words.tobytes(), words.dtype, offset=1)
    assert not shifted.flags.writeable
    data = encode_planes(shifted, rotate=True)
    assert data == encode_planes(words, rotate=True)
    store = bytearray(3 + words.nbytes)
    out = np.frombuffer(store, words.dtype, offset=3)
    decode_planes(memoryview(b"yy" + data)[2:], out, rotate=True)
    assert out.tobytes() == words.tobytes()
    assert store[:3] == b"\0\0\0"


def test_trained_floats_shrink_to_their_exponents() -> None:
    """A chunk of weights costs its exponent's entropy and the raw rest."""
    assert len(round_trip(weights(CHUNK_WORDS, 4), rotate=True)) < 0.84 * 4 * CHUNK_WORDS
    assert len(round_trip(weights(CHUNK_WORDS, 2), rotate=True)) < 0.68 * 2 * CHUNK_WORDS


def test_a_widened_type_costs_what_the_short_one_does() -> None:
    """float32 that was bfloat16 once: two constant planes and the short type's two."""
    short = weights(CHUNK_WORDS, 2)
    wide = short.astype("<u4") << np.uint32(16)
    assert len(round_trip(wide, rotate=True)) <= len(round_trip(short, rotate=True)) + 4


def test_constant_planes_are_one_byte() -> None:
    """Equal words take two bytes a plane, however many they are."""
    assert encode_planes(np.full(CHUNK_WORDS, 0x01020304, "<u4"), rotate=False) == bytes((1, 4, 1, 3, 1, 2, 1, 1))


def test_noise_is_kept_raw() -> None:
    """A plane that does not shrink is stored as it is, with one byte in front."""
    noise = np.frombuffer(np.random.default_rng(1).bytes(100_000), np.uint8)
    assert encode_planes(noise, rotate=False) == bytes((RAW,)) + noise.tobytes()


def test_repetition_is_found() -> None:
    """Where matches pay, they are used: a repeated block costs little more than once."""
    block = np.random.default_rng(2).bytes(1000)
    words = np.frombuffer(block * 400, np.uint8)
    assert len(round_trip(words, rotate=False)) < 4000


def test_the_same_bytes_from_every_thread() -> None:
    """What is written depends on the words alone, not on the thread or on what it did before."""
    words = [weights(count, width) for count in (100, 50_000, CHUNK_WORDS) for width in WIDTHS]
    expected = [encode_planes(w, rotate=True) for w in words]
    found: list[bool] = []

    def work(order: int) -> None:
        pairs = list(zip(words, expected, strict=True))[::order]
        found.append(all(round_trip(w, rotate=True) == e for w, e in pairs))

    threads = [threading.Thread(target=work, args=(order,)) for order in (1, -1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 3


def section(frame: bytes) -> bytes:
    return bytes((ZSTD,)) + struct.pack("<I", len(frame)) + frame


def streamed(data: bytes) -> bytes:
    """A frame that does not say its size."""
    return zstandard.ZstdCompressor(write_content_size=False).compress(data)


HOSTILE = {
    "nothing": b"",
    "unknown way": b"\x07",
    "raw too short": bytes((RAW,)) + bytes(99),
    "raw too long": bytes((RAW,)) + bytes(101),
    "constant without its byte": bytes((CONSTANT,)),
    "no length": bytes((ZSTD, 1, 0)),
    "length beyond the end": bytes((ZSTD,)) + b"\xff\xff\xff\xff" + bytes(50),
    "empty frame": section(b""),
    "not a frame": section(b"\x28\xb5\x2f\xfd" + b"\xff" * 40),
    "frame of another size": section(zstandard.compress(bytes(101))),
    "frame that expands to a gigabyte": section(zstandard.compress(bytes(1 << 30))),
    "frame that does not say its size": section(streamed(bytes(100))),
    "frame that declares 2^62 bytes": section(b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 62) + bytes(9)),
    "frame that gives less than it says": section(b"\x28\xb5\x2f\xfd\x20\x64" + b"\x01\x00\x00"),
    "skippable frame": section(b"\x50\x2a\x4d\x18" + struct.pack("<I", 100) + bytes(100)),
    "two frames": section(zstandard.compress(bytes(100)) * 2),
    "frame with bytes behind": section(zstandard.compress(bytes(100)) + b"!"),
    "wants a dictionary": section(
        zstandard.ZstdCompressor(
            dict_data=zstandard.ZstdCompressionDict(bytes(range(256)) * 4, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
        ).compress(bytes(range(100)))[:-1]
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_planes_are_record_errors(name: str) -> None:
    """Each with RecordError, and without memory for what the bytes claim."""
    words = np.zeros(100, np.uint8)
    tracemalloc.start()
    try:
        with pytest.raises(RecordError):
            decode_planes(HOSTILE[name], words, rotate=False)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=300), st.integers(0, 400))
def test_junk_is_a_record_error_or_a_value(junk: bytes, count: int) -> None:
    """Random bytes never raise anything else."""
    with contextlib.suppress(RecordError):
        decode_planes(junk, np.zeros(count, "<u2"), rotate=True)


@given(st.binary(max_size=70_000))
def test_compress_and_decompress_are_inverse(data: bytes) -> None:
    """For bytes of any length, the empty ones too."""
    assert decompress(compress(data), len(data)) == data


def test_the_compiled_way_is_there_where_a_compiler_is() -> None:
    if shutil.which("cc") is None or not Path(sysconfig.get_path("include"), "Python.h").exists():
        pytest.skip("no compiler, so the package was installed without it")
    assert codec._planes is not None


@pytest.mark.parametrize("rotate", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("count", [0, 1, 63, 64, 1000, 70_001])
def test_the_compiled_way_and_numpys_are_the_same(
    width: int, count: int, rotate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reads what the other has written, and writes the same: also words that are not aligned, and constant planes."""
    noise = np.random.default_rng(count).integers(0, 256, count * width, np.uint8)
    unaligned = np.frombuffer(b"\0" + noise.tobytes(), f"<u{width}", count, 1) if count else np.empty(0, f"<u{width}")
    for words in (unaligned, weights(count, width), np.full(count, 0x41, f"<u{width}")):
        compiled = round_trip(words, rotate=rotate)
        with monkeypatch.context() as patch:
            patch.setattr(codec, "_planes", None)
            assert round_trip(words, rotate=rotate) == compiled
            out = np.zeros(words.size, words.dtype)
            decode_planes(compiled, out, rotate=rotate)
            assert out.tobytes() == words.tobytes()


def test_the_compiled_way_checks_what_it_is_given() -> None:
    """Too few or too many planes, planes of a wrong length, what cannot be written: an error, and nothing outside is touched."""
    planes = codec._planes
    if planes is None:
        pytest.skip("the package was installed without it")
    words = np.zeros(8, "<u4")
    short, full = np.zeros(7, np.uint8), np.zeros(8, np.uint8)
    for wrong in ([full] * 3, [full] * 16, [], [full, full, full, short], [full, full]):
        with pytest.raises(ValueError, match="plane"):
            planes.split(words, wrong, True)
    frozen = np.zeros(8, np.uint8)
    frozen.flags.writeable = False
    with pytest.raises((ValueError, BufferError)):
        planes.split(words, [full, full, full, frozen], True)
    with pytest.raises(TypeError):
        planes.split(words, 4, True)  # type: ignore[arg-type]
    for width, size in ((3, 6), (0, 8), (16, 16), (4, 7)):
        with pytest.raises(ValueError, match="words"):
            planes.join(np.zeros(size, np.uint8), width, b"", True, decompress)
    with pytest.raises((TypeError, BufferError)):
        planes.join(frozen, 1, bytes((CONSTANT, 7)), True, decompress)
    for inflated in (b"", bytes(7), bytes(9), "8 bytes."):  # what an inflater must not do
        section = bytes((ZSTD, 1, 0, 0, 0, 0))
        assert not planes.join(full, 1, section, True, lambda _packed, _size, inflated=inflated: inflated)
    assert bytes(full) == bytes(8)
    assert planes.join(full, 1, bytes((CONSTANT, 7)), True, decompress)
    assert bytes(full) == b"\7" * 8


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_the_compiled_way_leaves_it_to_numpys_to_say_what_is_wrong(name: str) -> None:
    planes = codec._planes
    if planes is None:
        pytest.skip("the package was installed without it")
    for width in WIDTHS:
        with contextlib.suppress(RecordError):  # a damaged frame's own
            assert not planes.join(np.zeros(1000, f"<u{width}"), width, HOSTILE[name], False, decompress)
