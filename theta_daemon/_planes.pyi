from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

def merge(words: npt.NDArray[np.unsignedinteger], planes: Sequence[npt.NDArray[np.uint8]], rotate: bool, /) -> None: ...
def split(words: npt.NDArray[np.unsignedinteger], planes: Sequence[npt.NDArray[np.uint8]], rotate: bool, /) -> None: ...
