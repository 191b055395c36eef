"""The cases: which network, which way to call it, in which element type, and how exact a result must be.

Inputs, weights and the reference lie as files in a work folder (`networks.prepare` writes them), so that
every peer reads the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

CACHED = 128  # tokens in the cache when a decoder gets the next one

_INPUTS = {"forward": ("x",), "prefill": ("prompt",), "decode": ("next", "keys", "values")}
_TOLERANCES = {"float32": 1e-3, "bfloat16": 5e-2, "int8": 1.0}


@dataclass(frozen=True)
class Case:
    """One thing to time.

    ``network`` names a set of weights, ``entry`` how it is called: ``forward``, or a decoder's ``prefill``
    (many tokens at once) and ``decode`` (one token against a cache). ``work`` counts floating-point
    operations and ``traffic`` bytes that have to be read, where a share of the machine's limit is reported.
    """

    name: str
    network: str
    entry: str = "forward"
    dtype: str = "float32"
    work: int = 0
    traffic: int = 0
    micro: bool = field(default=False, kw_only=True)

    @property
    def tolerance(self) -> float:
        """Largest relative error of a result that counts as computed in the case's element type.

        Float32 sums in another order differ by 1e-5 in these networks; a thousandth is past any such
        difference and well below what bfloat16 arithmetic gives. With random weights eight bits are far from
        float32, with every peer: such a result is only known to be of the right magnitude.
        """
        return _TOLERANCES[self.dtype]

    def inputs(self, work: Path) -> list[np.ndarray]:
        """The inputs; floating-point ones are float32 in every case and converted by the peer."""
        return [np.load(work / self.network / f"{name}.npy") for name in _INPUTS[self.entry]]

    def reference(self, work: Path) -> np.ndarray:
        """The first output of PyTorch eager in float32."""
        return np.load(work / self.network / f"reference_{self.entry}.npy")

    def weights(self, work: Path) -> Path:
        """The weights as a torch state dict, in the case's element type; those of an 8-bit model before they
        are quantised."""
        return work / self.network / f"{'float32' if self.dtype == 'int8' else self.dtype}.pt"


def _cases() -> Iterable[Case]:
    for name in ("mobilenet_v2", "minilm", "deeplabv3", "resnet50"):
        yield Case(name, name)
        yield Case(f"{name}_int8", name, dtype="int8")
    for suffix, dtype in (("", "float32"), ("_bf16", "bfloat16")):
        for entry in ("prefill", "decode"):
            yield Case(f"qwen_{entry}{suffix}", "qwen", entry, dtype)
    # Limits of the machine, reached for by one kernel: see networks.py for the shapes.
    yield Case("gemm_1024", "gemm_1024", work=2 * 1024**3, micro=True)
    yield Case("gemv_256mib", "gemv_256mib", traffic=4 * 8192 * 8192, micro=True)


CASES: dict[str, Case] = {case.name: case for case in _cases()}
MODELS = tuple(name for name, case in CASES.items() if not case.micro)
DEFAULT_MODELS = ("mobilenet_v2", "minilm", "deeplabv3", "resnet50")


def relative_error(actual: np.ndarray, reference: np.ndarray) -> float:
    """max |found - reference| / max |reference|; infinite when a shape or a NaN differs."""
    if actual.shape != reference.shape:
        raise ValueError(f"the output has shape {actual.shape}, the reference {reference.shape}")
    error = float(np.abs(actual.astype(np.float64) - reference).max() / np.abs(reference).max())
    return error if np.isfinite(error) else float("inf")


def first(outputs: Any) -> Any:
    """The first output of a call that gives one or several."""
    return outputs[0] if isinstance(outputs, tuple | list) else outputs
