"""Pieces of prompts as the method that reads them takes them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mansard.plan.plan import TensorSpec

Ids = npt.NDArray[np.int64]


def prompt_piece(part: Sequence[int], inputs: Sequence[TensorSpec]) -> tuple[Ids, Ids]:
    """Inputs ``tokens`` (1, S) and ``last`` (1) for a piece of a prompt; ``inputs`` are those of the method.

    A method for pieces of one length gets padding behind shorter ones, which nothing reads
    (`mansard.frontends.decoders.decoder.build_decoder`).
    """
    length = next(spec.shape[1] for spec in inputs if spec.name == "tokens")
    missing = length - len(part) if isinstance(length, int) else 0
    return np.array([[*part, *[0] * missing]], np.int64), np.array([len(part) - 1], np.int64)
