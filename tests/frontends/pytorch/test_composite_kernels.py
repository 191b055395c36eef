"""Kernels with which composite ops are overridden for a decomposition: those that PyTorch sets."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_impls import op_implementations_dict
from torch.export import exported_program

from mansard.frontends.pytorch.decompositions.composite_kernels import remembering

override = exported_program._override_composite_implicit_decomp
COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


def test_kernels_of_composite_ops_are_those_that_torch_sets() -> None:
    def state() -> list[Any]:
        return [({**op.py_kernels}, op in op_implementations_dict) for op in ops]

    def rule(*_args: Any) -> Any:
        return NotImplemented

    aten = torch.ops.aten
    ops = [aten.linear.default, aten.conv2d.default, aten.upsample_nearest2d.vec]
    with override(dict.fromkeys(ops, rule)):
        wanted = state()
    outside = state()
    remembered = remembering(override)
    for new_rule in (rule, lambda *_: None):
        with remembered(dict.fromkeys(ops, new_rule)):
            inside = state()
        assert state() == outside
        for (kernels, fake), (of_torch, fake_of_torch) in zip(inside, wanted, strict=True):
            assert kernels.keys() == of_torch.keys() and fake == fake_of_torch
            assert kernels[COMPOSITE] is new_rule


def test_kernels_of_composite_ops_are_set_anew_after_another_has_set_some() -> None:
    op, key = torch.ops.aten.linear.default, torch._C.DispatchKey.CPU
    remembered = remembering(override)
    with remembered({op: torch.sub}):
        pass
    op.py_impl(key)(torch.add)
    try:
        for _ in range(2):
            with remembered({op: torch.sub}):
                assert op.py_kernels[key] is torch.add
            assert op.py_kernels[key] is torch.add
    finally:
        del op.py_kernels[key]
        op._dispatch_cache.clear()
