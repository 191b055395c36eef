"""GPU schedule of several products of the same few rows with what is computed from all of them: the gate and
the up projection of a layer, say. They are streamed together (`streamed`), with one launch, and share what is
read of the rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Nest
from mansard.codegen.schedules.common.base import Frame, Scheduled
from mansard.codegen.schedules.gpu.gemm.matrix import gemm_of
from mansard.codegen.schedules.gpu.gemm.matrix_product import GemmShape
from mansard.codegen.schedules.gpu.gemm.matrix_staging import WORDS
from mansard.codegen.schedules.gpu.gemm.product import analyse_root
from mansard.codegen.schedules.gpu.gemm.streamed import StreamedProduct, streamed_tiles
from mansard.codegen.schedules.gpu.gemv.parts import Parts
from mansard.dtypes import DType
from mansard.errors import CodegenError


def applies(parts: Parts, target: KernelTarget) -> bool:
    """Whether there is a kernel for the parts of a dispatch on a target."""
    target = target.with_one_subgroup_size()
    gemms = _gemms(parts, target)
    return bool(gemms) and bool(streamed_tiles(gemms[0], target, gemms[1:]))


def schedule(parts: Parts, target: KernelTarget, name: str) -> Scheduled:
    """The kernel of parts for which `applies` is True."""
    target = target.with_one_subgroup_size()
    gemms = _gemms(parts, target)
    if not gemms:
        raise CodegenError(f"dispatch {parts.products.dispatch.name} is no products of the same rows")
    tile = streamed_tiles(gemms[0], target, gemms[1:])[0]
    frame = Frame(parts.products, target, name, tile.subgroups * target.subgroup[0])
    others = [gemm.right for gemm in gemms[1:]]
    vectors = tile.shared_vectors(gemms[0].left, gemms[0].right, gemms[0].shape, *others)
    memory = frame.b.shared(DType.I32, vectors, WORDS)
    workgroups = StreamedProduct(frame, gemms[0], tile, memory, gemms[1:]).run()
    return frame.finish((workgroups, 1, 1))


def _gemms(parts: Parts, target: KernelTarget) -> Sequence[GemmShape]:
    """The products of a nest, if they differ in one factor alone and none is stored itself."""
    nest: Nest = parts.products
    roots = [root for root in nest.roots if root.reduces]
    if parts.rows is not None or len(roots) < 2 or any(root.stores for root in roots):
        return ()
    if any(root.inner for root in nest.roots if not root.reduces):
        return ()
    gemms = [gemm_of(nest, analyse_root(nest, root), target) for root in roots]
    known = [gemm for gemm in gemms if gemm is not None]
    if len(known) < len(roots) or not all(_alike(known[0], gemm) for gemm in known[1:]):
        return ()
    return known


def _alike(first: GemmShape, other: GemmShape) -> bool:
    """Whether two products have the same loops, but for those of their sums, and the same rows."""
    loops = [
        (p.batch, p.rows, p.columns, p.left.groups, p.left.extent, p.right.groups, p.right.extent, p.depth)
        for p in (first.product, other.product)
    ]
    return first.shape == other.shape and loops[0] == loops[1] and _rows(first) == _rows(other)


def _rows(gemm: GemmShape) -> object:
    """What is read as rows, with the loops of the sum as numbers of their own; what is computed is like
    nothing else."""
    left = gemm.left
    if left.address is None or left.guards or left.gather is not None:
        return gemm
    summed = [loop for group in left.factor.depth for loop in group]
    terms = {
        (loop in summed, summed.index(loop) if loop in summed else loop): c for loop, c in left.address.terms
    }
    return left.value, terms, left.address.offset, left.along
