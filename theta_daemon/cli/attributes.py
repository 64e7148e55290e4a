"""The one line that `git theta track` writes to a .gitattributes file, and the files with and without it.

Pure: bytes in, bytes out. What a line *means* is never worked out here, git is asked (`theta_daemon.cli.track`). Git's own
rules for the pattern (gitattributes(5), attr.c):

- a pattern with blanks, a leading quote or a leading hash stands in double quotes, with C escapes;
- a leading `!` would make git ignore the line: it is escaped, a file may be called so;
- a leading `[attr]` would define a macro: `**/[attr]…` means the same files and does not.
"""

from __future__ import annotations

from typing import Final

from theta_daemon.errors import ThetaError

ATTRIBUTES: Final = b"filter=theta diff=theta merge=theta -text"

_ESCAPES: Final = {0x07: b"a", 0x08: b"b", 0x09: b"t", 0x0A: b"n", 0x0B: b"v", 0x0C: b"f", 0x0D: b"r"}
_ESCAPES_ALSO: Final = {0x22: b'"', 0x5C: b"\\"}
_LONGEST_LINE: Final = 2048
"""git ignores longer lines (ATTR_MAX_LINE_LENGTH), with a warning only."""


def normalised(pattern: bytes) -> bytes:
    """`pattern` so that git takes it for a pattern. Raises ThetaError for one that can never match."""
    if pattern in {b"", b"/"}:
        raise ThetaError("an empty pattern matches nothing", "name files, such as '*.safetensors'")
    if b"\0" in pattern:
        raise ThetaError("a pattern cannot hold a NUL byte")
    if pattern.endswith(b"/"):
        pattern += b"**"  # git matches no folder in attributes, only the files in it
    if pattern.startswith(b"!"):
        return b"\\" + pattern
    if pattern.startswith(b"[attr]"):
        return b"**/" + pattern
    return pattern


def quoted(pattern: bytes) -> bytes:
    """`pattern` as it stands in a .gitattributes file."""
    plain = not pattern.startswith((b'"', b"#")) and all(0x20 < byte != 0x7F for byte in pattern)
    if plain:
        return pattern
    text = bytearray(b'"')
    for byte in pattern:
        if byte in _ESCAPES:
            text += b"\\" + _ESCAPES[byte]
        elif byte in _ESCAPES_ALSO:
            text += b"\\" + _ESCAPES_ALSO[byte]
        elif byte < 0x20 or byte == 0x7F:
            text += b"\\%03o" % byte
        else:
            text.append(byte)
    return bytes(text + b'"')


def unquoted(text: bytes) -> bytes | None:
    """The pattern that `quoted` gave `text`; None for what it does not write."""
    if not text.startswith(b'"'):
        return text
    if len(text) < 2 or not text.endswith(b'"'):
        return None
    letters = {value[0]: key for key, value in (_ESCAPES | _ESCAPES_ALSO).items()}
    body, pattern, at = text[1:-1], bytearray(), 0
    while at < len(body):
        if body[at] != 0x5C:
            pattern.append(body[at])
            at += 1
        elif body[at + 1 : at + 2] and body[at + 1] in letters:
            pattern.append(letters[body[at + 1]])
            at += 2
        else:
            digits = body[at + 1 : at + 4]
            if len(digits) != 3 or not all(0x30 <= digit <= 0x37 for digit in digits) or digits[0] > 0x33:
                return None
            pattern.append(int(digits, 8))
            at += 4
    return bytes(pattern)


def line(pattern: bytes) -> bytes:
    """The line, without its end, that tracks `pattern`. Raises ThetaError when git would not read it."""
    text = quoted(normalised(pattern)) + b" " + ATTRIBUTES
    if len(text) >= _LONGEST_LINE:
        raise ThetaError("the pattern is longer than git reads in a .gitattributes file")
    return text


def with_line(content: bytes, wanted: bytes) -> bytes:
    """`content` with the line `wanted` at its end, or unchanged when it has that very line already."""
    if wanted in _lines(content):
        return content
    end = b"" if not content or content.endswith(b"\n") else b"\n"
    return content + end + wanted + b"\n"


def without_line(content: bytes, unwanted: bytes) -> bytes:
    """`content` without any line that is `unwanted`, byte for byte; every other line untouched."""
    return b"".join(whole for whole in content.splitlines(keepends=True) if _bare(whole) != unwanted)


def tracked_patterns(content: bytes) -> list[bytes]:
    """The patterns of the lines in `content` that `track` wrote, in order."""
    ending = b" " + ATTRIBUTES
    patterns = [unquoted(text[: -len(ending)]) for text in _lines(content) if text.endswith(ending)]
    return [pattern for pattern in patterns if pattern]


def below(folder: bytes, pattern: bytes) -> bytes:
    """`pattern` of the .gitattributes in `folder` (empty, or ending in a slash), as one that means the same at the top."""
    if not folder:
        return pattern
    literal = b"".join(b"\\" + bytes([byte]) if byte in b"*?[\\" else bytes([byte]) for byte in folder)
    anchored = b"/" in pattern
    return literal + (pattern.removeprefix(b"/") if anchored else b"**/" + pattern)


def example(pattern: bytes) -> bytes | None:
    """A path that `pattern` (of the top folder) most likely matches; git has the last word."""
    path = pattern.removeprefix(b"/").replace(b"**/", b"")
    for wild, some in ((b"**", b"x"), (b"*", b"x"), (b"?", b"x")):
        path = path.replace(wild, some)
    return None if b"[" in path or b"\\" in path or not path else path


def _lines(content: bytes) -> list[bytes]:
    return [_bare(whole) for whole in content.splitlines(keepends=True)]


def _bare(whole: bytes) -> bytes:
    return whole.rstrip(b"\r\n")
