"""Products, convolutions, windows, indexing, control flow, special functions, random numbers, models."""

from __future__ import annotations

import itertools

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.scipy import signal, special, stats

from benchmarks.jax_functions.case import List, array

N, X, R = List("jax.numpy"), List("jax.lax"), List("jax.nn")

# Products -----------------------------------------------------------------------------------
_a, _b = array((3, 4)), array((4, 5), seed="b")
for _dtype in ("float32", "bfloat16", "float16", "int32", "int8"):
    N.add("matmul", jnp.matmul, array((3, 4), _dtype), array((4, 5), _dtype, seed="b"))
    N.add("dot", jnp.dot, array((2, 3, 4), _dtype), array((4,), _dtype, seed="b"))
N.add("matmul", jnp.matmul, array((2, 1, 3, 4)), array((5, 4, 2)), variant="batch")
for _name, _shapes in {
    "vdot": ((4,), (4,)),
    "inner": ((3, 4), (2, 4)),
    "outer": ((3,), (4,)),
    "vecdot": ((3, 4), (3, 4)),
    "matvec": ((3, 4), (4,)),
    "vecmat": ((3,), (3, 4)),
    "convolve": ((7,), (3,)),
    "correlate": ((7,), (3,)),
}.items():
    N.add(_name, getattr(jnp, _name), array(_shapes[0]), array(_shapes[1], seed="b"))
N.add("tensordot", lambda a, b: jnp.tensordot(a, b, ((1, 2), (0, 1))), array((3, 4, 5)), array((4, 5, 2)))
for _equation, _shapes in {
    "ij,jk->ik": ((3, 4), (4, 5)),
    "bij,bjk->bik": ((2, 3, 4), (2, 4, 5)),
    "bthd,bshd->bhts": ((2, 3, 2, 4), (2, 5, 2, 4)),
    "ii->i": ((4, 4),),
    "ii": ((4, 4),),
    "ij->ji": ((3, 4),),
    "ij->": ((3, 4),),
    "i,j->ij": ((3,), (4,)),
    "abc,cd,db->a": ((2, 3, 4), (4, 5), (5, 3)),
    "...ij,...jk->...ik": ((2, 3, 4), (4, 5)),
    "ijk,ilm,njm,nlk->": ((2, 3, 4), (2, 3, 2), (3, 3, 2), (3, 3, 4)),
}.items():
    N.add(
        "einsum",
        lambda *xs, e=_equation: jnp.einsum(e, *xs),
        *(array(s, seed=str(n)) for n, s in enumerate(_shapes)),
        variant=_equation,
    )
for _order in (None, 1, np.inf, "fro"):
    N.add("linalg.norm", lambda x, o=_order: jnp.linalg.norm(x, o), array((3, 3)), variant=str(_order))
N.add("linalg.matrix_power", lambda x: jnp.linalg.matrix_power(x, 3), array((3, 3)))
N.add(
    "linalg.multi_dot",
    lambda a, b, c: jnp.linalg.multi_dot([a, b, c]),
    array((2, 3)),
    array((3, 4)),
    array((4, 2)),
)
N.add("linalg.vector_norm", jnp.linalg.vector_norm, array((3, 4)))
for _name in ("linalg.inv", "linalg.det", "linalg.cholesky", "linalg.qr", "linalg.svd", "linalg.eigh"):
    N.add(
        _name,
        lambda x, n=_name.split(".")[1]: getattr(jnp.linalg, n)(x @ x.T + 3 * jnp.eye(3)),
        array((3, 3)),
    )
for _name in ("fft.fft", "fft.rfft", "fft.ifft", "fft.fft2"):
    N.add(_name, getattr(jnp.fft, _name.split(".")[1]), array((4, 4)))
N.add("angle", jnp.angle, array((4,)))
X.add(
    "dot_general",
    lambda a, b: lax.dot_general(a, b, (((2,), (1,)), ((0,), (0,)))),
    array((2, 3, 4)),
    array((2, 4, 5)),
)
X.add(
    "dot_general",
    lambda a, b: lax.dot_general(a, b, (((1, 3), (0, 2)), ((), ()))),
    array((2, 3, 4, 5)),
    array((3, 2, 5)),
)
X.add(
    "dot_general",
    lambda a, b: lax.dot_general(a, b, (((1,), (0,)), ((), ())), preferred_element_type="int32"),
    array((3, 4), "int8", -90, 90),
    array((4, 5), "int8", -90, 90),
)
X.add(
    "dot_general",
    lambda a, b: lax.dot_general(a, b, (((1,), (0,)), ((), ())), preferred_element_type="float32"),
    array((3, 4), "bfloat16"),
    array((4, 5), "bfloat16"),
)
X.add("batch_matmul", lax.batch_matmul, array((2, 3, 4)), array((2, 4, 5)))

# Convolutions and windows -------------------------------------------------------------------
_layouts = (("NCHW", "OIHW", "NCHW"), ("NHWC", "HWIO", "NHWC"))
for _layout, _padding, _stride, _dilation in itertools.product(
    _layouts, ("SAME", "VALID", ((2, 1), (0, -1))), ((1, 1), (2, 1)), ((1, 1), (2, 1))
):
    _shape = (2, 4, 9, 8) if _layout[0] == "NCHW" else (2, 9, 8, 4)
    _kernel = (6, 4, 3, 2) if _layout[0] == "NCHW" else (3, 2, 4, 6)
    X.add(
        "conv_general_dilated",
        lambda x, w, p=_padding, s=_stride, d=_dilation, n=_layout: lax.conv_general_dilated(
            x, w, s, p, rhs_dilation=d, dimension_numbers=n
        ),
        array(_shape),
        array(_kernel),
        variant=f"{_padding}-{_stride}-{_dilation}",
    )
for _groups, _kernel in ((2, (3, 3, 2, 6)), (4, (3, 3, 1, 4)), (4, (3, 3, 1, 8))):
    X.add(
        "conv_general_dilated",
        lambda x, w, g=_groups: lax.conv_general_dilated(
            x, w, (1, 1), "SAME", feature_group_count=g, dimension_numbers=("NHWC", "HWIO", "NHWC")
        ),
        array((2, 6, 5, 4)),
        array(_kernel),
        variant=f"groups={_groups}",
    )
X.add(
    "conv_general_dilated",
    lambda x, w: lax.conv_general_dilated(
        x, w, (1,), "SAME", batch_group_count=2, dimension_numbers=("NCH", "OIH", "NCH")
    ),
    array((4, 3, 7)),
    array((4, 3, 3)),
    variant="batch groups",
)
X.add(
    "conv_general_dilated",
    lambda x, w: lax.conv_general_dilated(x, w, (1, 1), ((1, 1), (2, 0)), lhs_dilation=(2, 3)),
    array((1, 2, 4, 5)),
    array((3, 2, 3, 3)),
    variant="spread",
)
X.add(
    "conv",
    lambda x, w: lax.conv(x, w, (1, 1), "SAME"),
    array((1, 2, 4, 5), "bfloat16"),
    array((3, 2, 3, 3), "bfloat16"),
)
X.add(
    "conv",
    lambda x, w: lax.conv(x, w, (1, 1, 1), "SAME"),
    array((1, 2, 4, 5, 3)),
    array((3, 2, 3, 2, 3)),
    variant="3d",
)
X.add(
    "conv_transpose",
    lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")),
    array((1, 4, 5, 2)),
    array((3, 3, 2, 3)),
)
X.add(
    "conv_transpose",
    lambda x, w: lax.conv_transpose(
        x, w, (2,), "VALID", transpose_kernel=True, dimension_numbers=("NHC", "HIO", "NHC")
    ),
    array((1, 4, 2)),
    array((3, 3, 2)),
)
for _op, _start in (("max", -np.inf), ("add", 0.0), ("min", np.inf)):
    for _padding in ("VALID", "SAME"):
        X.add(
            "reduce_window",
            lambda x, f=getattr(lax, _op), s=np.float32(_start), p=_padding: lax.reduce_window(
                x, s, f, (1, 3, 2, 1), (1, 2, 1, 1), p
            ),
            array((2, 7, 6, 3)),
            variant=f"{_op}-{_padding}",
        )
X.add(
    "reduce_window",
    lambda x: lax.reduce_window(x, np.float32(0), lax.add, (2, 2), (1, 1), ((1, 0), (0, 1)), (2, 1), (1, 2)),
    array((5, 6)),
    variant="dilated",
)
X.add(
    "reduce_window",
    lambda x: lax.reduce_window(x, np.float32(1), lax.mul, (2,), (1,), "VALID"),
    array((5,)),
    variant="mul",
)
X.add(
    "reduce_window",
    jax.grad(lambda x: (lax.reduce_window(x, -np.inf, lax.max, (2, 2), (2, 2), "VALID") ** 2).sum()),
    array((6, 6)),
    variant="gradient",
)
X.add(
    "conv",
    jax.grad(lambda w, x: (lax.conv(x, w, (2, 2), "SAME") ** 2).sum()),
    array((3, 2, 3, 3)),
    array((1, 2, 6, 5)),
    variant="gradient of the kernel",
)
X.add(
    "conv",
    jax.grad(lambda x, w: (lax.conv(x, w, (2, 2), "SAME") ** 2).sum()),
    array((1, 2, 6, 5)),
    array((3, 2, 3, 3)),
    variant="gradient of the input",
)
S = List("jax.scipy")
S.add("signal.convolve", lambda a, b: signal.convolve(a, b, method="direct"), array((7,)), array((3,)))
S.add("signal.convolve2d", lambda a, b: signal.convolve2d(a, b, mode="same"), array((5, 6)), array((3, 3)))
S.add("signal.correlate2d", lambda a, b: signal.correlate2d(a, b), array((5, 6)), array((3, 3)))
S.add("signal.detrend", lambda a: signal.detrend(a, type="constant"), array((9,)))

# Indexing -----------------------------------------------------------------------------------
_x, _i, _j = array((6, 5)), array((4,), "int32", -6, 5), array((4,), "int32", 0, 4)
for _variant, _f in {
    "column": lambda x, i, j: x[:, 2],
    "last": lambda x, i, j: x[-1],
    "step": lambda x, i, j: x[1:5:2, ::-1],
    "rows": lambda x, i, j: x[i],
    "columns": lambda x, i, j: x[:, j],
    "both": lambda x, i, j: x[i, j],
    "one": lambda x, i, j: x[i[0]],
    "point": lambda x, i, j: x[i[0], j[1]],
    "new": lambda x, i, j: x[None, i, None],
    "outer": lambda x, i, j: x[jnp.ix_(j, j)],
    "part": lambda x, i, j: x[i, 1:3],
    "ellipsis": lambda x, i, j: x[..., j],
    "fill": lambda x, i, j: x.at[i + 4].get(mode="fill", fill_value=-1),
    "clip": lambda x, i, j: x.at[i + 4].get(mode="clip"),
    "2d": lambda x, i, j: x[i.reshape(2, 2)],
    "mask": lambda x, i, j: jnp.where(x[i] > 0, x[i], 0),
    "set": lambda x, i, j: x.at[i].set(7.0),
    "set row": lambda x, i, j: x.at[2].set(x[0]),
    "set part": lambda x, i, j: x.at[1:4, 2:].set(0.0),
    "add": lambda x, i, j: x.at[i].add(1.0),
    "add both": lambda x, i, j: x.at[i, j].add(x[0, :4]),
    "mul": lambda x, i, j: x.at[j].multiply(2.0),
    "min": lambda x, i, j: x.at[j].min(0.0),
    "max": lambda x, i, j: x.at[:, j].max(0.5),
    "set column": lambda x, i, j: x.at[:, j[0]].set(x[:, 0]),
    "drop": lambda x, i, j: x.at[i + 4].set(1.0, mode="drop"),
    "apply": lambda x, i, j: x.at[jnp.array([1, 3])].apply(jnp.exp),
    "divide": lambda x, i, j: x.at[jnp.array([0, 2])].divide(2.0),
    "power": lambda x, i, j: x.at[jnp.array([0, 2])].power(2.0),
    "take": lambda x, i, j: jnp.take(x, i, 0),
    "take flat": lambda x, i, j: jnp.take(x, j),
    "take clip": lambda x, i, j: jnp.take(x, i + 5, 0, mode="clip"),
    "take wrap": lambda x, i, j: jnp.take(x, i + 5, 0, mode="wrap"),
    "take_along_axis": lambda x, i, j: jnp.take_along_axis(x, j[None], 1),
    "put_along_axis": lambda x, i, j: jnp.put_along_axis(x, j[None], 3.0, 1, inplace=False),
    "fill_diagonal": lambda x, i, j: jnp.fill_diagonal(x, 1.0, inplace=False),
    "place": lambda x, i, j: jnp.place(x, x > 0, jnp.array([1.0]), inplace=False),
    "put": lambda x, i, j: jnp.put(x, j, 2.0, inplace=False),
}.items():
    N.add("ndarray", _f, _x, _i, _j, variant=_variant)
for _starts in ((1, 2), (5, 9), (-1, 0)):
    _place = np.array(_starts, np.int32)
    X.add("dynamic_slice", lambda x, s: lax.dynamic_slice(x, s, (3, 2)), _x, _place, variant=str(_starts))
    X.add(
        "dynamic_update_slice",
        lambda x, u, s: lax.dynamic_update_slice(x, u, s),
        _x,
        array((2, 3)),
        _place,
        variant=str(_starts),
    )
X.add("dynamic_index_in_dim", lambda x, i: lax.dynamic_index_in_dim(x, i, 1), _x, np.int32(3))
X.add(
    "dynamic_update_index_in_dim",
    lambda x, u, i: lax.dynamic_update_index_in_dim(x, u, i, 1),
    _x,
    array((6,)),
    np.int32(3),
)
X.add("slice", lambda x: lax.slice(x, (1, 0), (6, 5), (2, 3)), _x)
X.add("index_in_dim", lambda x: lax.index_in_dim(x, 2, 1), _x)
X.add("gather", lambda x, i: jax.vmap(lambda row, k: row[k])(x, i), array((4, 5)), _j, variant="batched")
X.add(
    "gather",
    lambda x, i: jax.vmap(lambda row, k: lax.dynamic_slice(row, (k,), (2,)))(x, i),
    array((4, 5)),
    _j,
    variant="slices",
)
X.add(
    "scatter",
    lambda x, i: jax.vmap(lambda row, k: row.at[k].set(9.0))(x, i),
    array((4, 5)),
    _j,
    variant="batched",
)
X.add(
    "scatter",
    lambda x, i: jax.vmap(lambda row, k: lax.dynamic_update_slice(row, jnp.ones(2), (k,)))(x, i),
    array((4, 5)),
    _j,
    variant="slices",
)
X.add(
    "scatter_add", jax.grad(lambda x: (x[np.array([0, 2, 2])] ** 2).sum()), array((4, 3)), variant="gradient"
)
R.add("one_hot", lambda i: jax.nn.one_hot(i, 5), _i)
for _name in ("softmax", "log_softmax", "logsumexp", "standardize"):
    for _axis in (0, -1):
        R.add(
            _name,
            lambda x, f=getattr(jax.nn, _name), a=_axis: f(x, axis=a),
            array((3, 4)),
            variant=str(_axis),
        )
    R.add(_name, getattr(jax.nn, _name), array((3, 4), "bfloat16"))
R.add("softmax", lambda x, w: jax.nn.softmax(x, where=w), array((3, 4)), np.arange(12).reshape(3, 4) % 3 != 1)
for _causal in (False, True):
    R.add(
        "dot_product_attention",
        lambda q, k, v, c=_causal: jax.nn.dot_product_attention(q, k, v, is_causal=c),
        *(array((2, 6, 4, 8), seed=s) for s in "qkv"),
        variant=str(_causal),
    )
R.add(
    "dot_product_attention",
    jax.nn.dot_product_attention,
    array((2, 6, 4, 8)),
    array((2, 6, 2, 8)),
    array((2, 6, 2, 8)),
    variant="grouped",
)

# Control flow -------------------------------------------------------------------------------
for _variant, _g in {
    "fori_loop": lambda x: lax.fori_loop(0, 5, lambda i, c: c * 0.5 + i, x),
    "while_loop": lambda x: lax.while_loop(lambda c: c[0] < 4, lambda c: (c[0] + 1, c[1] * 2), (0, x))[1],
    "scan": lambda x: lax.scan(lambda c, r: (c + r, c * r), x[0], x),
    "scan reverse": lambda x: lax.scan(lambda c, r: (c + r, c * r), x[0], x, reverse=True),
    "map": lambda x: lax.map(lambda r: jnp.sum(r) * r, x),
    "cond": lambda x: lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x),
    "switch": lambda x: lax.switch(jnp.int32(jnp.abs(x[0, 0]) * 3), [jnp.sin, jnp.cos, jnp.tanh], x),
    "cond static": lambda x: lax.cond(True, jnp.sin, jnp.cos, x),
    "associative_scan": lambda x: lax.associative_scan(jnp.add, x),
    "vmap": jax.vmap(lambda r: jnp.dot(r, r)),
    "checkpoint": jax.checkpoint(lambda x: jnp.sin(x) * 2),
    "stop_gradient": lax.stop_gradient,
    "optimization_barrier": lax.optimization_barrier,
    "custom_jvp": jax.nn.relu,
    "remat grad": jax.grad(lambda x: jnp.sum(jnp.tanh(x) ** 2)),
    "hessian": lambda x: jax.hessian(lambda v: jnp.sum(v**3))(x[0]),
    "jvp": lambda x: jax.jvp(jnp.sin, (x,), (x,))[1],
    "nested jit": jax.jit(lambda x: jax.jit(jnp.sin)(x) + 1),
    "while computed": lambda x: lax.while_loop(lambda c: jnp.sum(c) < 100.0, lambda c: c * 2 + 1, x),
}.items():
    X.add(_variant.replace(" ", "_"), _g, array((4, 3)))

# Special functions --------------------------------------------------------------------------
for _name, _low, _high in (
    ("erf", -3, 3),
    ("erfc", -3, 5),
    ("erfinv", -0.95, 0.95),
    ("expit", -5, 5),
    ("logit", 0.05, 0.95),
    ("gammaln", 0.1, 9),
    ("digamma", 0.1, 9),
    ("entr", 0.1, 3),
    ("i0", -3, 3),
    ("i0e", -3, 3),
    ("i1", -3, 3),
    ("i1e", -3, 3),
    ("ndtr", -3, 3),
    ("ndtri", 0.05, 0.95),
    ("log_ndtr", -5, 3),
    ("factorial", 0, 6),
    ("gamma", 0.2, 5),
    ("softmax", -2, 2),
    ("logsumexp", -2, 2),
    ("log_softmax", -2, 2),
    ("spence", 0.2, 3),
    ("exp1", 0.2, 3),
    ("sici", 0.2, 3),
):
    for _dtype in (
        ("float32",) if _name in ("ndtr", "ndtri", "log_ndtr", "spence") else ("float32", "bfloat16")
    ):
        S.add(f"special.{_name}", getattr(special, _name), array((17,), _dtype, _low, _high))
for _name, _low, _high in (
    ("xlogy", 0.1, 3),
    ("xlog1py", 0.1, 3),
    ("rel_entr", 0.1, 3),
    ("kl_div", 0.1, 3),
    ("betaln", 0.2, 4),
    ("beta", 0.2, 4),
    ("zeta", 1.5, 4),
    ("poch", 0.5, 3),
):
    S.add(
        f"special.{_name}",
        getattr(special, _name),
        array((9,), low=_low, high=_high),
        array((9,), low=_low, high=_high, seed="b"),
    )
S.add("special.polygamma", lambda x: special.polygamma(2, x), array((9,), low=0.5, high=4))
S.add("special.multigammaln", lambda x: special.multigammaln(x, 2), array((9,), low=2, high=4))
S.add(
    "special.gammainc", special.gammainc, array((9,), low=0.5, high=4), array((9,), low=0.5, high=4, seed="b")
)
S.add(
    "special.betainc",
    special.betainc,
    array((5,), low=0.5, high=4),
    array((5,), low=0.5, high=4, seed="b"),
    array((5,), low=0.1, high=0.9),
)
for _name in (
    "norm.logpdf",
    "norm.pdf",
    "norm.cdf",
    "norm.logcdf",
    "logistic.pdf",
    "laplace.logpdf",
    "cauchy.pdf",
    "expon.logpdf",
    "uniform.pdf",
    "t.logpdf",
):
    _target = stats
    for _part in _name.split("."):
        _target = getattr(_target, _part)
    S.add(
        f"stats.{_name}", (lambda x: stats.t.logpdf(x, 3.0)) if _name == "t.logpdf" else _target, array((9,))
    )

# Random numbers of a key --------------------------------------------------------------------
D = List("jax.random")
for _variant, _h in {
    "uniform": lambda k: jax.random.uniform(k, (7,)),
    "normal": lambda k: jax.random.normal(k, (7,)),
    "bits": lambda k: jax.random.bits(k, (7,)),
    "randint": lambda k: jax.random.randint(k, (7,), 0, 10),
    "bernoulli": lambda k: jax.random.bernoulli(k, 0.3, (7,)),
    "split": lambda k: jax.random.key_data(jax.random.split(k, 3)),
    "fold_in": lambda k: jax.random.key_data(jax.random.fold_in(k, 3)),
    "permutation": lambda k: jax.random.permutation(k, 7),
    "gumbel": lambda k: jax.random.gumbel(k, (7,)),
    "categorical": lambda k: jax.random.categorical(k, jnp.log(jnp.array([0.1, 0.2, 0.7])), shape=(7,)),
    "exponential": lambda k: jax.random.exponential(k, (7,)),
    "truncated_normal": lambda k: jax.random.truncated_normal(k, -1.0, 1.0, (7,)),
    "choice": lambda k: jax.random.choice(k, 9, (4,)),
    "laplace": lambda k: jax.random.laplace(k, (7,)),
    "cauchy": lambda k: jax.random.cauchy(k, (7,)),
    "dropout": lambda k: jnp.where(jax.random.bernoulli(k, 0.5, (8,)), 1.0, 0.0),
}.items():
    D.add(_variant, lambda seed, f=_h: f(jax.random.wrap_key_data(seed)), array((2,), "uint32", 0, 1000))
CASES = N.cases | X.cases | R.cases | S.cases | D.cases
