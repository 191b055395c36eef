"""The kernels with which PyTorch overrides composite ops for a decomposition, remembered by op.

``torch.export`` registers some 20 kernels one by one for each of some 500 composite ops, for each of the two
passes of a decomposition. But for the rule itself they depend on the op only: once PyTorch has registered
them, they are set again at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
Override = Callable[[Mapping[Any, Any]], contextlib.AbstractContextManager[None]]


@dataclass(frozen=True)
class _Kernels:
    """What PyTorch's override of an op made of its kernels."""

    before: dict[Any, Any]
    inside: dict[Any, Any]
    """Without the rule, which each decomposition brings."""
    fake: Any
    """The op's rule for fake tensors."""


def remembering(override: Override) -> Override:
    """``override``, a context manager of a mapping of ops to rules, which does its work once for each op.

    An op whose kernels are not those of the first time goes through ``override`` again.
    """
    from torch._subclasses.fake_impls import op_implementations_dict as fake_rules

    remembered: dict[Any, _Kernels] = {}

    @contextlib.contextmanager
    def overridden(rules: Mapping[Any, Any]) -> Iterator[None]:
        known, others = {}, {}
        for op, rule in rules.items():
            kernels = remembered.get(op)
            if kernels is None or op in fake_rules or op.py_kernels != kernels.before:
                others[op] = rule
            else:
                known[op] = kernels
        before = {op: op.py_kernels.copy() for op in others if op not in fake_rules}
        with override(others):
            for op, kernels in before.items():
                inside = {key: kernel for key, kernel in op.py_kernels.items() if key != _COMPOSITE}
                remembered[op] = _Kernels(kernels, inside, fake_rules[op])
            try:
                for op, kernels in known.items():
                    _set(op, {**kernels.inside, _COMPOSITE: rules[op]})
                    fake_rules[op] = kernels.fake
                yield
            finally:
                for op, kernels in known.items():
                    _set(op, kernels.before)
                    fake_rules.pop(op, None)

    return overridden


def _set(op: Any, kernels: Mapping[Any, Any]) -> None:
    op.py_kernels.clear()
    op.py_kernels.update(kernels)
    op._dispatch_cache.clear()
