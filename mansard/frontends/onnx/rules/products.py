"""Products of matrices."""

from __future__ import annotations

from mansard.dims import DimLike
from mansard.errors import ImportModelError
from mansard.frontends.emission.expressions import Num
from mansard.frontends.emission.quantisation import with_zero_point
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.onnx.graph import GraphImporter
from mansard.frontends.onnx.node import Node
from mansard.frontends.onnx.rules.small_weights import product_with, stored_weight
from mansard.frontends.onnx.table import rule
from mansard.ir.shapes import same_dim
from mansard.ir.types import Linear


@rule("MatMul")
def matmul(g: GraphImporter, node: Node) -> Tensor:
    """NumPy's product."""
    a = node.tensor(0)
    stored = stored_weight(g, node, transposed=False)
    if stored is None:
        return g.matmul(a, node.tensor(1))
    return g.cast(product_with(g, a, stored), a.dtype)


@rule("Gemm")
def gemm(g: GraphImporter, node: Node) -> Tensor:
    """A scaled product, and a scaled addend."""
    a, b = node.tensor(0), node.tensor(1)
    a = g.transpose(a, (1, 0)) if node.integer("transA") else a
    stored = stored_weight(g, node, transposed=bool(node.integer("transB")))
    if stored is not None:
        product = g.cast(product_with(g, a, stored), a.dtype)
    else:
        product = g.matmul(a, g.transpose(b, (1, 0)) if node.integer("transB") else b)
    alpha, beta = node.real("alpha", 1.0), node.real("beta", 1.0)
    product = product if alpha == 1 else g.map(lambda e: e * _scale(e, alpha), product)
    c = node.optional(2)
    if c is None or beta == 0:
        return product
    return g.map(lambda e, f: e + (f if beta == 1 else f * _scale(f, beta)), product, c)


def _scale(e: Num, factor: float) -> float:
    return factor if e.dtype.is_float else int(factor)


@rule("MatMulInteger")
def matmul_integer(g: GraphImporter, node: Node) -> Tensor:
    """A product of 8-bit integers, in i32."""
    a, b = node.tensor(0), node.tensor(1)
    x = with_zero_point(g, a, node.optional(2), -2)
    return g.matmul(x, with_zero_point(g, b, node.optional(3)))


@rule("Einsum")
def einsum(g: GraphImporter, node: Node) -> Tensor:
    """Sums of products, by named dims."""
    tensors = node.tensors()
    equation = node.text("equation").replace(" ", "")
    left, arrow, right = equation.partition("->")
    names = _expanded(left.split(","), tensors)
    ellipsis = max((n for n in names), key=lambda n: sum(c in _BATCH for c in n), default="")
    shared = "".join(c for c in ellipsis if c in _BATCH)
    if arrow:
        output = right.replace("...", shared)
    else:
        letters = "".join(names)
        output = shared + "".join(sorted(c for c in set(letters) - set(shared) if letters.count(c) == 1))
    return _contract(g, tensors, names, output)


_BATCH = "0123456789"


def _expanded(terms: list[str], tensors: list[Tensor]) -> list[str]:
    """Terms with ``...`` as digits, the last dim always the same one."""
    counts = [t.rank - len(term.replace("...", "")) for term, t in zip(terms, tensors, strict=True)]
    widest = max((c for term, c in zip(terms, counts, strict=True) if "..." in term), default=0)
    if widest > len(_BATCH):
        raise ImportModelError(f"an einsum over {widest} unnamed dims")
    return [term.replace("...", _BATCH[widest - c : widest]) for term, c in zip(terms, counts, strict=True)]


def _contract(g: GraphImporter, tensors: list[Tensor], names: list[str], output: str) -> Tensor:
    sizes: dict[str, DimLike] = {}
    for term, tensor in zip(names, tensors, strict=True):
        for name, d in zip(term, tensor.shape, strict=True):
            known = sizes.get(name, 1)
            if known != 1 and d != 1 and not same_dim(known, d):
                raise ImportModelError(f"dim {name!r} of an einsum is {known} and {d}")
            sizes[name] = d if known == 1 else known
    summed = [name for name in dict.fromkeys("".join(names)) if name not in output]
    order = [*output, *summed]
    body = g.body([sizes[name] for name in order])
    product: Num | None = None
    for term, tensor in zip(names, tensors, strict=True):
        linear = [
            Linear() if d == 1 else Linear.dim(order.index(n))
            for n, d in zip(term, tensor.shape, strict=True)
        ]
        element = g.read(body, tensor, linear)
        product = element if product is None else product * element
    assert product is not None
    return g.finish(body, product, len(summed), "add" if summed else None)


@rule("Det")
def determinant(g: GraphImporter, node: Node) -> Tensor:
    """Determinants of small matrices, by expansion along the first row."""
    x = node.tensor(0)
    order = x.shape[-1]
    if not isinstance(order, int) or order > 4:
        raise node.fail(f"matrices of {order} rows; up to 4 are supported")
    body = g.body(x.shape[:-2])
    lead = [Linear.dim(i) for i in range(x.rank - 2)]

    def minor(row: int, columns: tuple[int, ...]) -> Num:
        entries = [g.read(body, x, [*lead, Linear((), row), Linear((), c)]) for c in columns]
        if len(columns) == 1:
            return entries[0]
        result: Num | None = None
        for i, entry in enumerate(entries):
            term = entry * minor(row + 1, columns[:i] + columns[i + 1 :])
            result = term if result is None else result - term if i % 2 else result + term
        assert result is not None
        return result

    return g.finish(body, minor(0, tuple(range(order))))
