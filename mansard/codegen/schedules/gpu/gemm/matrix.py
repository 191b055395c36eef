"""GPU schedule of matrix products with cooperative matrices (matrix units): f16 and bf16 factors with sums in
f32, 8-bit integers with sums in i32.

A workgroup computes ``rows x columns`` results; each of its subgroups accumulates a part of them in
cooperative matrices::

    read the first tiles of both factors into registers
    for each step of the depth:
        write the tiles to shared memory
        barrier
        read the next tiles into registers          # in flight during the products; not in the last step
        for each matrix depth in the step: results += left matrices @ right matrices
        barrier
    for each strip of the results, through shared memory: epilogue, stores

A few rows stream the other factor instead (`streamed`). With few results, several subgroups each compute a
part of every step, and their sums are added in that strip. Edges of rows and columns are clamped in loads and
predicated in stores; beyond the depth, zeros are multiplied.
"""

from __future__ import annotations

from collections.abc import Sequence

from mansard import dims
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Nest
from mansard.codegen.parameters import Parameters
from mansard.codegen.schedules.common.base import Frame, Scheduled, estimate
from mansard.codegen.schedules.gpu.gemm import warpgroups
from mansard.codegen.schedules.gpu.gemm.matrix_product import GemmShape, MatrixProduct
from mansard.codegen.schedules.gpu.gemm.matrix_staging import WORDS, operand
from mansard.codegen.schedules.gpu.gemm.matrix_tile import GemmMatrixTile, shape_for
from mansard.codegen.schedules.gpu.gemm.product import Product, analyse
from mansard.codegen.schedules.gpu.gemm.streamed import StreamedProduct, few_rows, streamed_tiles
from mansard.codegen.schedules.gpu.gemm.tiles_by_size import TilesBySize
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.errors import CodegenError

CANDIDATES = 16
"""The most tiles offered to a search."""
MIN_ROWS, MIN_CODED_ROWS = 4, 8
"""The minimum known rows for which weights stream through matrix units; those of small integers, which have
to be made floats for them, from more on."""
MIN_EXTENT = 8
"""The minimum rows, columns and depth: with fewer, most of a matrix would be unused."""


def applies(nest: Nest, target: KernelTarget) -> bool:
    """Whether the nest is a product whose types the target has cooperative matrices for, and whose tiles
    fit."""
    target = target.with_one_subgroup_size()
    gemm = _gemm(nest, target)
    return gemm is not None and bool(streamed_tiles(gemm, target) or gemm.tiles(target))


def streams(nest: Nest, target: KernelTarget) -> bool:
    """Whether the nest is a product of few rows, but so many that matrix units are better than sums of
    vectors."""
    gemm = _gemm(nest, target.with_one_subgroup_size())
    if gemm is None or not streamed_tiles(gemm, target.with_one_subgroup_size()):
        return False
    return dims.bounds(gemm.product.left.extent)[1] >= (MIN_CODED_ROWS if gemm.right.scales else MIN_ROWS)


def candidates(nest: Nest, target: KernelTarget) -> Sequence[Parameters]:
    """Tiles to try, the default first: no parameters are for what `schedule` chooses by itself."""
    target = target.with_one_subgroup_size()
    gemm = _required(nest, target)
    streamed = streamed_tiles(gemm, target)
    tiles = [tile.parameters() for tile in [*streamed, *gemm.tiles(target)][:CANDIDATES]]
    by_warpgroups = not streamed and warpgroups.tiles(gemm, gemm.by_size(target).small, target) is not None
    return [Parameters(), *tiles] if by_warpgroups else tiles


def schedule(nest: Nest, target: KernelTarget, name: str, parameters: Parameters | None = None) -> Scheduled:
    """The kernel of a product with the tile of ``parameters``, or the one with the lowest predicted cost."""
    target = target.with_one_subgroup_size()
    gemm = _required(nest, target)
    if parameters:
        chosen = TilesBySize(GemmMatrixTile.of(parameters))
    elif streamed := streamed_tiles(gemm, target):
        chosen = TilesBySize(streamed[0])
    else:
        chosen = gemm.by_size(target)
        by_warpgroups = warpgroups.tiles(gemm, chosen.small, target)
        if by_warpgroups is not None:
            return warpgroups.schedule(gemm, by_warpgroups, target, name)
    frame = Frame(nest, target, name, chosen.small.subgroups * target.subgroup[0])
    vectors = [tile.shared_vectors(gemm.left, gemm.right, gemm.shape) for tile in chosen.tiles]
    memory = frame.b.shared(DType.I32, max(vectors), WORDS)
    grids: list[DimLike] = []
    for tile, applies_there in chosen.conditions():
        if applies_there == 1:
            kind = StreamedProduct if tile.ahead else MatrixProduct
            grids.append(kind(frame, gemm, tile, memory).run())
            continue
        here = frame.b.compare("eq", frame.ev.dim(applies_there), frame.b.idx(1))
        with frame.b.if_(here), frame.ev.scope():
            grids.append(dims.mul(applies_there, MatrixProduct(frame, gemm, tile, memory).run()))
    return frame.finish((dims.add(*grids), 1, 1))


def _gemm(nest: Nest, target: KernelTarget) -> GemmShape | None:
    return gemm_of(nest, analyse(nest, gathers=True), target)


def gemm_of(nest: Nest, product: Product | None, target: KernelTarget) -> GemmShape | None:
    """The product for matrix units of a target with one size of subgroups; None where they do not take it."""
    smallest, largest = target.subgroup
    if product is None or not target.matrices or smallest != largest:
        return None
    sizes = (product.left.extent, product.right.extent, product.depth)
    if not few_rows(product) and min(estimate(size) for size in sizes) < MIN_EXTENT:
        return None
    pair = product.left, product.right
    left, right = (operand(nest, product.root, f, other) for f, other in (pair, pair[::-1]))
    if left is None or right is None or left.dtype is not right.dtype:
        return None
    shape = shape_for(left.dtype, target)
    return GemmShape(nest, product, left, right, shape) if shape is not None else None


def _required(nest: Nest, target: KernelTarget) -> GemmShape:
    gemm = _gemm(nest, target)
    if gemm is None:
        raise CodegenError(
            f"dispatch {nest.dispatch.name} is not a product for matrix units of {target.name}"
        )
    return gemm
