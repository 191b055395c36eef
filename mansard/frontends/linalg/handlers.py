"""The handlers of ops in a function's body, in addition to the scalar ops of `arith.RULES`."""

from __future__ import annotations

from mansard.frontends.linalg import attention, generic, slices, tensors, tm_tensor
from mansard.frontends.linalg.importer import Handler

HANDLERS: dict[str, Handler] = {
    "affine.apply": tensors.import_affine,
    "affine.max": tensors.import_affine,
    "affine.min": tensors.import_affine,
    "arith.constant": tensors.import_constant,
    "cf.assert": tensors.import_assert,
    "linalg.fill": tensors.import_fill,
    "linalg.generic": generic.import_generic,
    "tensor.cast": tensors.import_cast,
    "tensor.collapse_shape": tensors.import_collapse,
    "tensor.concat": tensors.import_concat,
    "tensor.dim": tensors.import_dim,
    "tensor.empty": tensors.import_empty,
    "tensor.expand_shape": tensors.import_expand,
    "tensor.extract": tensors.import_extract,
    "tensor.extract_slice": slices.import_extract_slice,
    "tensor.from_elements": tensors.import_from_elements,
    "tensor.generate": tensors.import_generate,
    "tensor.insert": tensors.import_insert,
    "tensor.insert_slice": slices.import_insert_slice,
    "tensor.pad": slices.import_pad,
    "tensor.reshape": tensors.import_reshape,
    "tensor.splat": tensors.import_splat,
    "tm_tensor.attention": attention.import_attention,
    "tm_tensor.scan": tm_tensor.import_scan,
    "tm_tensor.scatter": tm_tensor.import_scatter,
    "tm_tensor.sort": tm_tensor.import_sort,
    "tm_tensor.topk": tm_tensor.import_topk,
}
"""Op name to handler."""
