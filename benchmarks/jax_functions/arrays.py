"""Shapes, reductions, sorts."""

from __future__ import annotations

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from benchmarks.jax_functions.case import List, array

N = List("jax.numpy")
x34, x345 = array((3, 4)), array((3, 4, 5))
i34 = array((3, 4), "int32", -5, 9)

# Reductions ---------------------------------------------------------------------------------
for _name in (
    "sum",
    "prod",
    "mean",
    "max",
    "min",
    "any",
    "all",
    "std",
    "var",
    "argmax",
    "argmin",
    "nansum",
    "nanmean",
    "nanmax",
    "nanmin",
    "nanprod",
    "nanstd",
    "nanvar",
    "nanargmax",
    "nanargmin",
    "median",
    "nanmedian",
    "ptp",
    "count_nonzero",
    "average",
    "cumsum",
    "cumprod",
    "nancumsum",
    "nancumprod",
    "amax",
    "amin",
):
    _f = getattr(jnp, _name)
    for _axis in (None, 0, 1, -1):
        N.add(_name, lambda x, f=_f, a=_axis: f(x, axis=a), x34, variant=f"axis={_axis}")
    N.add(_name, lambda x, f=_f: f(x, axis=1), i34, variant="axis=1")
    N.add(_name, lambda x, f=_f: f(x, axis=0), array((3, 4), "bfloat16"), variant="axis=0")
    if _name not in ("cumsum", "cumprod", "nancumsum", "nancumprod", "average"):
        N.add(_name, lambda x, f=_f: f(x, axis=1, keepdims=True), x345, variant="keepdims")
    N.add(_name, lambda x, f=_f: f(x), np.array([1.0, np.nan, 3.0, -np.inf], np.float32), variant="nan")
for _name in ("sum", "max", "min", "argmax", "any", "all", "prod", "mean"):
    N.add(_name, lambda x, f=getattr(jnp, _name): f(x, axis=0), array((3, 4), "bool"), variant="bool")
for _name in ("sum", "prod", "mean", "any", "all"):
    N.add(_name, lambda x, f=getattr(jnp, _name): f(x, axis=0), array((0, 3)), variant="empty")
    if _name != "mean":
        N.add(_name, lambda x, f=getattr(jnp, _name): f(x, axis=(0, 2)), x345, variant="axes")
for _q in (0.25, 0.5, 0.9):
    N.add("quantile", lambda x, q=_q: jnp.quantile(x, q, axis=1), x34, variant=str(_q))
    N.add("percentile", lambda x, q=_q: jnp.percentile(x, 100 * q), x34, variant=str(_q))
N.add("trapezoid", jnp.trapezoid, array((9,)))
N.add("diff", jnp.diff, x34)
N.add("ediff1d", jnp.ediff1d, array((6,)))
N.add("gradient", lambda x: jnp.gradient(x, axis=1), x34)
N.add("cov", jnp.cov, x34)
N.add("corrcoef", jnp.corrcoef, x34)
N.add("unwrap", jnp.unwrap, array((9,), low=-6, high=6))
N.add("histogram", lambda x: jnp.histogram(x, bins=4, range=(-2, 2)), array((20,)))
N.add("bincount", lambda x: jnp.bincount(x, length=6), array((9,), "int32", 0, 5))
N.add("digitize", lambda x: jnp.digitize(x, jnp.array([-1.0, 0.0, 1.0])), array((9,)))
N.add("searchsorted", lambda a, v: jnp.searchsorted(a, v), np.sort(array((8,))), array((5,), seed="v"))
N.add(
    "searchsorted",
    lambda a, v: jnp.searchsorted(a, v, side="right", method="sort"),
    np.sort(array((8,))),
    array((5,), seed="v"),
    variant="sort",
)
N.add("interp", jnp.interp, array((6,)), np.sort(array((5,), seed="p")), array((5,), seed="f"))

# Shapes -------------------------------------------------------------------------------------
for _variant, _f in {
    "reshape": lambda x: x.reshape(2, -1, 10),
    "ravel": jnp.ravel,
    "transpose": jnp.transpose,
    "permute": lambda x: jnp.transpose(x, (1, 2, 0)),
    "swapaxes": lambda x: jnp.swapaxes(x, 0, 2),
    "moveaxis": lambda x: jnp.moveaxis(x, 0, -1),
    "expand_dims": lambda x: jnp.expand_dims(x, 1),
    "squeeze": lambda x: jnp.squeeze(x[:1], 0),
    "flip": lambda x: jnp.flip(x, 1),
    "fliplr": jnp.fliplr,
    "flipud": jnp.flipud,
    "rot90": jnp.rot90,
    "roll": lambda x: jnp.roll(x, 2, 1),
    "roll_flat": lambda x: jnp.roll(x, -3),
    "tile": lambda x: jnp.tile(x, (2, 1, 3)),
    "repeat": lambda x: jnp.repeat(x, 3, 1),
    "repeats": lambda x: jnp.repeat(x, np.array([1, 0, 2]), 0),
    "split": lambda x: jnp.split(x, 2, 1),
    "array_split": lambda x: jnp.array_split(x, 3, 2),
    "unstack": lambda x: jnp.unstack(x),
    "tril": jnp.tril,
    "triu": jnp.triu,
    "diagonal": jnp.diagonal,
    "trace": jnp.trace,
    "broadcast_to": lambda x: jnp.broadcast_to(x, (2, 3, 4, 5)),
    "rollaxis": lambda x: jnp.rollaxis(x, 2),
    "resize": lambda x: jnp.resize(x, (5, 7)),
    "delete": lambda x: jnp.delete(x, 1, 1),
    "insert": lambda x: jnp.insert(x, 1, 9.0, 1),
    "append": lambda x: jnp.append(x, x, 0),
    "atleast_3d": lambda x: jnp.atleast_3d(x[0]),
    "matrix_transpose": jnp.matrix_transpose,
    "packbits": lambda x: jnp.packbits(x > 0),
    "apply_along_axis": lambda x: jnp.apply_along_axis(jnp.cumsum, 1, x),
    "vectorize": lambda x: jnp.vectorize(lambda a: a * 2)(x),
}.items():
    N.add(_variant, _f, x345)
    N.add(_variant, _f, array((3, 4, 5), "int32", 0, 9)) if _variant not in ("gradient",) else None
for _variant, _g in {
    "concatenate": lambda *a: jnp.concatenate(a, 1),
    "stack": lambda *a: jnp.stack(a, 1),
    "vstack": lambda *a: jnp.vstack(a),
    "hstack": lambda *a: jnp.hstack(a),
    "dstack": lambda *a: jnp.dstack(a),
    "column_stack": lambda *a: jnp.column_stack(a),
    "block": lambda a, b: jnp.block([[a, b], [b, a]]),
    "kron": jnp.kron,
    "cross": lambda a, b: jnp.cross(a[:, :3], b[:, :3]),
}.items():
    N.add(_variant, _g, x34, array((3, 4), seed="b"))
for _mode in (
    "constant",
    "edge",
    "reflect",
    "wrap",
    "symmetric",
    "linear_ramp",
    "mean",
    "maximum",
    "minimum",
):
    N.add("pad", lambda x, m=_mode: jnp.pad(x, ((1, 2), (2, 0)), m), x34, variant=_mode)
for _variant, _h in {
    "eye": lambda: jnp.eye(3, 4, 1),
    "identity": lambda: jnp.identity(3),
    "tri": lambda: jnp.tri(3),
    "arange": lambda: jnp.arange(2, 9, 3),
    "linspace": lambda: jnp.linspace(0, 1, 7),
    "logspace": lambda: jnp.logspace(0, 2, 5),
    "geomspace": lambda: jnp.geomspace(1, 8, 4),
    "zeros": lambda: jnp.zeros((2, 3)),
    "ones": lambda: jnp.ones((2, 3), "int32"),
    "full": lambda: jnp.full((2, 3), 7.0),
    "indices": lambda: jnp.indices((2, 3)),
    "hanning": lambda: jnp.hanning(6),
    "hamming": lambda: jnp.hamming(6),
    "bartlett": lambda: jnp.bartlett(6),
    "blackman": lambda: jnp.blackman(6),
    "kaiser": lambda: jnp.kaiser(6, 2.0),
    "tril_indices": lambda: jnp.tril_indices(4),
    "triu_indices": lambda: jnp.triu_indices(4),
    "diag_indices": lambda: jnp.diag_indices(3),
}.items():
    N.add(_variant, _h)
N.add("diag", jnp.diag, array((4,)))
N.add("diag", lambda x: jnp.diag(x, 1), x34)
N.add("diagflat", jnp.diagflat, array((3,)))
N.add("vander", lambda x: jnp.vander(x, 3), array((4,)))
N.add("meshgrid", lambda a, b: jnp.meshgrid(a, b), array((3,)), array((4,)))
N.add("zeros_like", jnp.zeros_like, x34)
N.add("ones_like", jnp.ones_like, i34)
N.add("full_like", lambda x: jnp.full_like(x, 2), x34)
N.add("polyval", jnp.polyval, array((4,)), array((5,), seed="x"))
N.add("polyadd", jnp.polyadd, array((4,)), array((3,), seed="x"))
N.add("polymul", jnp.polymul, array((4,)), array((3,), seed="x"))
N.add("polyder", jnp.polyder, array((4,)))

# Sorts --------------------------------------------------------------------------------------
for _name in ("sort", "argsort"):
    for _dtype in ("float32", "int32", "bfloat16", "uint8"):
        for _axis in (0, 1):
            N.add(
                _name,
                lambda x, f=getattr(jnp, _name), a=_axis: f(x, axis=a),
                array((5, 6), _dtype, -9, 9),
                variant=f"axis={_axis}",
            )
    N.add(_name, lambda x, f=getattr(jnp, _name): f(x, descending=True), array((9,)), variant="descending")
    N.add(
        _name,
        lambda x, f=getattr(jnp, _name): f(x),
        np.array([np.nan, 1.0, -np.inf, 0.0, np.inf, -1.0], np.float32),
        variant="nan",
    )
N.add(
    "lexsort", lambda a, b: jnp.lexsort((a, b)), array((9,), "int32", 0, 3), array((9,), "int32", 0, 3, "b")
)
N.add("partition", lambda x: jnp.sort(jnp.partition(x, 3)[:3]), array((9,)))
N.add("argpartition", lambda x: x[jnp.sort(jnp.argpartition(x, 3)[:3])], array((9,)))
N.add("unique", lambda x: jnp.unique(x, size=5, fill_value=0), array((9,), "int32", 0, 4))
N.add("nonzero", lambda x: jnp.nonzero(x, size=6, fill_value=-1), array((9,), "int32", -1, 1))
N.add("argwhere", lambda x: jnp.argwhere(x, size=6), array((3, 4), "bool"))
N.add("flatnonzero", lambda x: jnp.flatnonzero(x, size=4), array((9,), "bool"))
N.add(
    "union1d", lambda a, b: jnp.union1d(a, b, size=9), array((4,), "int32", 0, 5), array((5,), "int32", 0, 5)
)
N.add(
    "setdiff1d",
    lambda a, b: jnp.setdiff1d(a, b, size=4),
    array((4,), "int32", 0, 5),
    array((5,), "int32", 0, 5),
)
N.add("isin", jnp.isin, array((6,), "int32", 0, 5), array((3,), "int32", 0, 5))

X = List("jax.lax")
for _name in ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"):
    for _reverse in (False, True):
        X.add(
            _name,
            lambda x, f=getattr(lax, _name), r=_reverse: f(x, axis=1, reverse=r),
            x34,
            variant=f"reverse={_reverse}",
        )
X.add("cumsum", lambda x: lax.cumsum(x), array((9,), "int32"))
X.add("sort", lambda a, b: lax.sort((a, b), num_keys=1), array((9,), "int32", 0, 3), array((9,)))
X.add(
    "sort",
    lambda a, b: lax.sort((a, b), num_keys=2),
    array((9,), "int32", 0, 3),
    array((9,)),
    variant="two keys",
)
X.add("sort", lambda a, b: lax.sort((a, b), dimension=0, num_keys=1), array((4, 3)), array((4, 3), "int32"))
for _k in (1, 3):
    X.add("top_k", lambda x, k=_k: lax.top_k(x, k), array((4, 7)), variant=str(_k))
    X.add("top_k", lambda x, k=_k: lax.top_k(x, k), array((7,), "int32", 0, 3), variant=str(_k))
X.add("approx_max_k", lambda x: lax.approx_max_k(x, 3), array((4, 7)))
for _op, _start in (("add", 0.0), ("mul", 1.0), ("max", -np.inf), ("min", np.inf)):
    X.add(
        "reduce",
        lambda x, f=getattr(lax, _op), s=np.float32(_start): lax.reduce(x, s, f, (1,)),
        x34,
        variant=_op,
    )
X.add("reduce", lambda x: lax.reduce(x, np.float32(5), lax.add, (0, 1)), x34, variant="start")
X.add(
    "reduce",
    lambda x, y: lax.reduce(
        (x, y), (np.float32(0), np.float32(1)), lambda a, b: (a[0] + b[0], a[1] * b[1]), (1,)
    ),
    x34,
    x34,
    variant="pair",
)
X.add("reduce_and", lambda x: lax.reduce_and_p.bind(x, axes=(0,)), array((3, 4), "bool"))
X.add("reduce_xor", lambda x: lax.reduce(x, np.bool_(False), lax.bitwise_xor, (0,)), array((3, 4), "bool"))
X.add("argmax", lambda x: lax.argmax(x, 1, "int32"), x34)
X.add("iota", lambda: lax.iota("float32", 7))
X.add("broadcasted_iota", lambda: lax.broadcasted_iota("int32", (3, 4), 1))
X.add("broadcast_in_dim", lambda x: lax.broadcast_in_dim(x, (2, 4, 3), (1, 2)), array((4, 3)))
X.add("broadcast_in_dim", lambda x: lax.broadcast_in_dim(x, (2, 4, 3), (0, 2)), array((1, 3)))
X.add("rev", lambda x: lax.rev(x, (0, 2)), x345)
X.add("squeeze", lambda x: lax.squeeze(x, (0,)), array((1, 3)))
for _config in (
    ((1, 2, 0), (0, 1, 0)),
    ((-1, 2, 0), (0, -2, 0)),
    ((0, 0, 1), (1, 0, 2)),
    ((-1, 0, 1), (1, -1, 1)),
    ((-2, -1, 0), (0, 0, 0)),
):
    X.add("pad", lambda x, c=_config: lax.pad(x, np.float32(7), c), x34, variant=str(_config))
X.add("pad", lambda x, v: lax.pad(x, v, ((1, 1, 1), (-1, 2, 0))), x34, array(()), variant="computed")
X.add("split", lambda x: lax.split(x, (1, 3), 1), x34)

M = List("jax.image")
for _method in ("nearest", "linear", "cubic", "lanczos3"):
    for _shape in ((1, 7, 5, 2), (1, 2, 8, 2)):
        M.add(
            "resize",
            lambda x, m=_method, s=_shape: jax.image.resize(x, s, m),
            array((1, 4, 4, 2)),
            variant=f"{_method}-{_shape}",
        )
CASES = N.cases | X.cases | M.cases
