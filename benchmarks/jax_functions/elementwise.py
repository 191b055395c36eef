"""Functions of elements."""

from __future__ import annotations

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from benchmarks.jax_functions.case import List, array

INTEGERS = ("int32", "uint8", "int16")
MIXED = ("float32", "bfloat16", "int32", "uint8")
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5], np.float32)

N = List("jax.numpy")
N.each("abs negative positive sign square conj real", jnp, dtypes=MIXED)
N.each(
    "exp exp2 expm1 sin cos tan sinh cosh tanh arcsinh arctan cbrt floor ceil trunc rint round fabs sinc "
    "deg2rad rad2deg degrees radians isnan isinf isfinite isneginf isposinf signbit nan_to_num i0",
    jnp,
)
N.each("log log2 log10 log1p sqrt reciprocal", jnp, low=0.1, high=5)
N.each("arcsin arccos arctanh", jnp, low=-0.95, high=0.95)
N.each("arccosh", jnp, low=1.1, high=5)
N.each(
    "add subtract multiply maximum minimum equal not_equal greater greater_equal less less_equal",
    jnp,
    2,
    MIXED,
)
N.each("divide true_divide arctan2 hypot logaddexp logaddexp2 copysign nextafter heaviside fmax fmin", jnp, 2)
N.each("floor_divide mod remainder fmod", jnp, 2, ("float32", "int32", "uint8"), low=1, high=9)
N.each("floor_divide mod remainder fmod", jnp, 2, ("int32", "int8"), ((64,),), low=-9, high=9)
N.each("power float_power", jnp, 2, ("float32",), low=0.2, high=3)
N.each("power", jnp, 2, ("int32", "uint8"), ((8,),), low=0, high=4)
N.each("divmod", jnp, 2, ("float32", "int32"), ((7,),), low=1, high=9)
N.each("logical_and logical_or logical_xor", jnp, 2, ("bool", "int32", "float32"))
N.each("logical_not", jnp, 1, ("bool", "int32", "float32"))
N.each("bitwise_and bitwise_or bitwise_xor", jnp, 2, ("int32", "uint8", "bool"))
N.each("bitwise_not invert bitwise_count", jnp, 1, INTEGERS)
N.each("left_shift right_shift", jnp, 2, INTEGERS, low=0, high=7)
N.each("gcd lcm", jnp, 2, ("int32",), ((6,),), low=1, high=30)
N.each("isclose", jnp, 2, ("float32",))
N.each("clip", jnp, 1, MIXED, min=-1, max=1)
N.each("modf frexp", jnp, 1, ("float32",))
N.add("ldexp", lambda x: jnp.ldexp(x, 3), array((3, 4)))
for _name in (
    "floor",
    "ceil",
    "sign",
    "abs",
    "rint",
    "isnan",
    "isfinite",
    "sqrt",
    "exp",
    "log",
    "tanh",
    "arctan",
    "nan_to_num",
):
    N.add(_name, getattr(jnp, _name), SPECIAL, variant="special")
for _name in (
    "maximum",
    "minimum",
    "arctan2",
    "add",
    "multiply",
    "divide",
    "copysign",
    "fmax",
    "equal",
    "less",
    "power",
):
    _a, _b = np.meshgrid(SPECIAL, SPECIAL)
    N.add(_name, getattr(jnp, _name), _a, _b, variant="special")
N.add("where", jnp.where, array((3, 4), "bool"), array((3, 4)), array((4,)))
N.add("where", jnp.where, array((3, 1), "bool"), array((3, 4), "int32"), array((), "int32"))
N.add("select", lambda x: jnp.select([x > 1, x > 0], [x * 2, x - 1], 0.0), array((3, 4)))
N.add("piecewise", lambda x: jnp.piecewise(x, [x < 0, x >= 0], [lambda v: -v, lambda v: v * v]), array((7,)))

X = List("jax.lax")
X.each("sign neg abs floor ceil exp expm1 tanh logistic sin cos tan erf cbrt is_finite square", lax)
X.each("log log1p sqrt rsqrt", lax, low=0.1, high=4)
X.each("round", lax, 1, ("float32", "float16"), low=-4, high=4)
X.add(
    "round",
    lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
    np.array([0.5, 1.5, -0.5, -2.5, 3.2], np.float32),
    variant="away",
)
X.add(
    "round",
    lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
    np.array([0.5, 1.5, -0.5, -2.5, 3.2], np.float32),
    variant="even",
)
X.each("div rem", lax, 2, ("float32", "int32", "int8", "uint8"), ((32,),), low=-9, high=9)
X.each("pow atan2 nextafter", lax, 2, ("float32",), low=0.3, high=3)
X.each("max min add sub mul eq ne ge gt le lt", lax, 2, ("float32", "int32", "uint32"))
X.each("bitwise_and bitwise_or bitwise_xor", lax, 2, ("int32", "uint16"))
X.each(
    "shift_left shift_right_arithmetic shift_right_logical",
    lax,
    2,
    ("int32", "uint8", "int8"),
    ((40,),),
    low=-3,
    high=40,
)
X.each("population_count clz", lax, 1, ("int32", "uint8", "uint32", "int16"), ((20,),), low=0, high=120)
for _dtype in ("int32",):
    X.add("clamp", lambda x: lax.clamp(-1, x, 1), array((3, 4), _dtype))
for _power in (-2, -1, 0, 1, 2, 3, 5):
    X.add("integer_pow", lambda x, p=_power: lax.integer_pow(x, p), array((9,), low=0.5), variant=str(_power))
X.add("select_n", lax.select_n, array((3, 4), "bool"), array((3, 4)), array((3, 4), seed="b"))
X.add(
    "select_n",
    lambda i, *xs: lax.select_n(i, *xs),
    array((5,), "int32", 0, 2),
    *(array((5,), seed=s) for s in "abc"),
)
for _to in ("int32", "int8", "uint8", "float16", "bfloat16", "bool", "float32", "int16"):
    for _from in ("float32", "int32", "uint8", "bool", "float16"):
        X.add(
            "convert_element_type",
            lambda x, d=_to: lax.convert_element_type(x, d),
            array((3, 4), _from, -3, 3),
            variant=_to,
        )
X.add(
    "convert_element_type",
    lambda x: lax.convert_element_type(x, "int32"),
    np.array([np.nan, np.inf, -np.inf, 3e9, -3e9, 1.9], np.float32),
    variant="limits",
)
X.add(
    "convert_element_type",
    lambda x: lax.convert_element_type(x, "int8"),
    np.array([np.nan, 300, -300, 127.5], np.float32),
    variant="limits",
)
for _to in ("int32", "uint32", "uint8", "uint16", "int16"):
    X.add("bitcast_convert_type", lambda x, d=_to: lax.bitcast_convert_type(x, d), array((3, 4)), variant=_to)
X.add(
    "bitcast_convert_type",
    lambda x: lax.bitcast_convert_type(x, "float32"),
    array((3, 4), "uint8", 0, 100),
    variant="joined",
)
X.add("reduce_precision", lambda x: lax.reduce_precision(x, 8, 7), array((9,)))
X.add("reduce_precision", lambda x: lax.reduce_precision(x, 5, 10), array((9,)))

R = List("jax.nn")
R.each(
    "relu relu6 sigmoid softplus sparse_plus sparse_sigmoid soft_sign silu swish log_sigmoid leaky_relu "
    "hard_sigmoid hard_silu hard_swish hard_tanh elu celu selu gelu squareplus mish identity",
    jax.nn,
    shapes=((3, 4), (0, 3)),
)
R.each("gelu", jax.nn, shapes=((3, 4),), approximate=False)
R.each("glu", jax.nn, dtypes=("float32",), shapes=((3, 4),))
CASES = N.cases | X.cases | R.cases
