"""The characters of a text as an array of code points."""

import numpy as np
from numpy.typing import NDArray


def codes_of(text: str) -> NDArray[np.uint32]:
    """[len(text)]: the code points; lone surrogates, which damaged input may hold, are kept."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
