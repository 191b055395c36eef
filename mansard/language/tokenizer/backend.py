"""The package ``tokenizers``, which does the work; imported where it is used."""

from __future__ import annotations

from typing import Any

from mansard.errors import ImportModelError


def backend_module() -> Any:
    """The package; raises ImportModelError that says how to install it."""
    try:
        import tokenizers
    except ImportError as error:
        raise ImportModelError("tokenizers need the package tokenizers: pip install 'mansard[lm]'") from error
    return tokenizers
