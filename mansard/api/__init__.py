"""What `import mansard` offers: `compile`, `load`, `lower`, `tune`, `devices`, and the `Model`."""

from mansard.api.compilation import compile, lower, tune  # noqa: A004  # used as mansard.compile
from mansard.api.explanation import Explanation
from mansard.api.loading import devices, load
from mansard.api.model import Model

__all__ = ["Explanation", "Model", "compile", "devices", "load", "lower", "tune"]
