from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from theta_daemon.tensor import Buffer

def equal(
    one: Buffer | npt.NDArray[np.unsignedinteger], other: Buffer | npt.NDArray[np.unsignedinteger], /
) -> bool: ...
def join(
    words: npt.NDArray[np.unsignedinteger],
    width: int,
    sections: Buffer,
    rotate: bool,
    inflate: Callable[[memoryview, int], bytes],
    /,
) -> bool: ...
def split(words: npt.NDArray[np.unsignedinteger], planes: Sequence[npt.NDArray[np.uint8]], rotate: bool, /) -> None: ...
def replay(
    words: npt.NDArray[np.unsignedinteger],
    width: int,
    scripts: bytes,
    parts: Sequence[Buffer],
    floats: bool,
    inflate: Callable[[memoryview, int], bytes],
    /,
) -> int: ...
