"""The handlers of ops in a function's body, in addition to the scalar ops of `arith.RULES`."""

from __future__ import annotations

from mansard.frontends.linalg import attention, generic, slices, tensors, tm_tensor
from mansard.frontends.linalg.importer import Handler

HANDLERS: dict[str, Handler] = {
    op: handler
    for module in (attention, generic, slices, tensors, tm_tensor)
    for op, handler in module.HANDLERS.items()
}
"""Op name to handler; each module states those of its ops."""
