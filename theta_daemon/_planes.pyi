from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from theta_daemon.tensor import Buffer

def merge(words: npt.NDArray[np.unsignedinteger], planes: Sequence[npt.NDArray[np.uint8]], rotate: bool, /) -> None: ...
def split(words: npt.NDArray[np.unsignedinteger], planes: Sequence[npt.NDArray[np.uint8]], rotate: bool, /) -> None: ...
def scatter(
    words: npt.NDArray[np.unsignedinteger],
    width: int,
    body: Buffer,
    rotate: bool,
    inflate: Callable[[bytes, int], bytes],
    /,
) -> bool: ...
