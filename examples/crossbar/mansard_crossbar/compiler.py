"""The compiler half: which products the tiles take, until they are full."""

from __future__ import annotations

from mansard.codegen.backend import Backend, CompiledDispatch
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.parameters import Parameters
from mansard.dtypes import DType
from mansard.errors import CodegenError
from mansard.hal.device import DeviceInfo
from mansard.ir.dispatch import Dispatch
from mansard.ir.graph import Graph
from mansard.ir.ops import Generic, Op, Reshape
from mansard.ir.region import Partition, Region
from mansard.ir.scalar import Apply, Arg
from mansard.targets.profile import DeviceProfile, LinkProfile
from mansard_crossbar.model import model
from mansard_crossbar.program import FORMAT, Product, product_of, write_program


class CrossbarBackend(Backend):
    """Products of f32 values with constants, each a region whose weight stays in tiles."""

    name = "crossbar"
    late_binding = True
    region_format = FORMAT

    def parse_target(self, text: str) -> KernelTarget:
        """``crossbar`` alone."""
        if text != self.name:
            raise CodegenError(f"unknown target {text!r}: there is one, {self.name!r}")
        return KernelTarget(self.name)

    def profile(self, text: str, device: DeviceInfo | None) -> DeviceProfile:
        """Links to the host; products are priced by `estimate_region`."""
        link = LinkProfile(1e10, 1e-5)
        launch = model().seconds["launch"]
        return DeviceProfile(self.name, 1e10, 1e10, 0, {"f32": 1e9}, launch, link, unified=True)

    def refuses(self, dispatch: Dispatch, target: KernelTarget) -> str | None:
        """Everything that is in no region."""
        return "its tiles multiply by weights that they hold, and compute nothing else"

    def compile_dispatch(
        self, dispatch: Dispatch, target: KernelTarget, name: str, parameters: Parameters | None = None
    ) -> CompiledDispatch:
        """Not on this device."""
        raise CodegenError(f"the simulated crossbar compiles products, not dispatch {dispatch.name!r}")

    def partition(self, graph: Graph, target: KernelTarget) -> Partition:
        """A region for each product that fits: those with the most vectors for a tile first."""
        reasons, fitting = dict[Op, str](), list[Product]()
        for op in graph.ops:
            if isinstance(product := _product(op, graph), Product):
                fitting.append(product)
            elif not isinstance(op, Reshape):
                reasons[op] = product
        regions, free = list[Region](), model().tiles
        for product in sorted(fitting, key=lambda p: p.size(p.vectors) / _tiles(p), reverse=True):
            if (tiles := _tiles(product)) > free:
                reasons[product.op] = (
                    f"its weight takes {tiles} tiles, and {free} of {model().tiles} are free"
                )
                continue
            free -= tiles
            regions.append(Region(frozenset({product.op})))
        return Partition(tuple(regions), reasons)

    def estimate_region(self, region: Graph, target: KernelTarget) -> float:
        """One vector after another: the tiles of a weight work at once."""
        product, seconds = product_of(region), model().seconds
        return seconds["launch"] + product.size(product.vectors) * seconds["vector"]

    def describe_region(self, region: Graph, target: KernelTarget) -> str:
        """Tiles and energy."""
        product = product_of(region)
        vectors = product.size(product.vectors)
        joules = model().energy(vectors, product.size(product.op.reduced), product.size(product.outputs))
        return f"{_tiles(product)} tiles, {vectors} vectors, {joules * 1e6:.3g} µJ"

    def compile_region(self, region: Graph, target: KernelTarget) -> bytes:
        """A program with the codes of the weight."""
        return write_program(region, model())


def _product(op: Op, graph: Graph) -> Product | str:
    """A product for the tiles, or why an op is none."""
    body = op.body if isinstance(op, Generic) and op.is_contraction and len(op.inputs) == 2 else None
    if not isinstance(op, Generic) or not isinstance(body, Apply) or body.op != "mul":
        return "its tiles multiply vectors by weights, and compute nothing else"
    if not all(isinstance(a, Arg) and a.dtype is DType.F32 for a in body.args):
        return "its converters take products of two f32 numbers"
    constants = [v in graph.constants for v in op.inputs]
    if constants.count(True) != 1:
        return "its cells hold a weight, and not exactly one factor is one"
    if any(m is None or m.fill not in (None, 0.0) for m in op.maps):
        return "its margin is not zero"
    product = Product(op, constants.index(True))
    if product.walked(product.weight) & set(product.vectors) or not product.outputs:
        return "a tile multiplies whole vectors; here each channel has a weight of its own"
    if not all(isinstance(op.extents[d], int) for d in (*op.reduced, *product.outputs)):
        return "the size of its weight is not fixed"
    return product


def _tiles(product: Product) -> int:
    return model().tiles_of(product.size(product.op.reduced), product.size(product.outputs))


BACKEND = CrossbarBackend()
