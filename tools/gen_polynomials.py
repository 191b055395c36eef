"""Makes ``mansard/codegen/math/coefficients.py``: polynomials of the elementary functions.

Every polynomial is a least-squares fit on Chebyshev nodes in multiple precision (within a small factor
of minimax) of the kernel named in `KERNELS`, with the weight that makes its error the *relative* error of
the function in the end. The degree is the smallest that reaches the wanted error. Coefficients are
rounded to the element type from the lowest on, and the rest fitted again after each, so that rounding
costs almost nothing.

Run ``python tools/gen_polynomials.py`` to write the file, ``--check`` to compare with it. Needs mpmath.
"""

from __future__ import annotations

import argparse
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mpmath import mp, mpf

OUTPUT = Path(__file__).parent.parent / "mansard/codegen/math/coefficients.py"
WANTED = {"f32": mpf(2) ** -27, "f64": mpf(2) ** -57}
PRECISION = {"f32": 24, "f64": 53}
DIGITS = 80
NODES = 160
ERF_CENTER, ERF_SCALE = mpf(3), mpf(4)
ERF_LIMIT, ERF_DEGREE = 3.921875, 5
"""Where erf rounds to 1 in f32, and the degree of both polynomials of its quotient."""

Real = Callable[[mpf], mpf]


@dataclass(frozen=True)
class Kernel:
    """``function(x)`` approximated by a polynomial in ``variable(x)`` over an interval.

    ``weight(x)`` turns an absolute error of the polynomial into the relative error of the result.
    """

    name: str
    formula: str
    function: Real
    variable: Real
    weight: Real
    interval: dict[str, tuple[float, float]]
    extra_bits: int = 0
    """How many bits below the usual error is wanted."""


def _half_ln2() -> float:
    # A little wider than ln(2)/2: rounding x*log2(e) may pick the neighbour.
    return 0.3475


def _same(low: float, high: float) -> dict[str, tuple[float, float]]:
    return {"f32": (low, high), "f64": (low, high)}


def _hazard(x: mpf) -> mpf:
    return -mp.log(mp.erfc(x)) / x if x else 2 / mp.sqrt(mp.pi)


def _erf_weight(x: mpf) -> mpf:
    u = x * _hazard(x)
    return (u / mp.expm1(u) if u else mpf(1)) / _hazard(x)


def _scaled_erfc(t: mpf) -> mpf:
    """Smooth in ``t = 2/(2 + x)``, as in Press et al., "Numerical Recipes", 3rd edition, 6.2.2."""
    x = 2 / t - 2
    return mp.erfc(x) * mp.exp(x * x) / t


def _ratio(x: mpf, limit: mpf, value: Real) -> mpf:
    """``value(x)``, or its limit where the formula is 0/0."""
    return limit if abs(x) < mpf(10) ** -9 else value(x)


KERNELS = (
    Kernel(
        "EXPM1",
        "exp(r) - 1 = r + r*r*P(r) for |r| <= ln(2)/2",
        lambda r: _ratio(r, mpf(1) / 2, lambda r: (mp.expm1(r) - r) / r**2),
        lambda r: r,
        lambda r: _ratio(r, mpf(0), lambda r: r**2 / mp.expm1(r)),
        _same(-_half_ln2(), _half_ln2()),
    ),
    Kernel(
        "EXP2",
        "2**r = 1 + r*P(r) for |r| <= 1/2",
        lambda r: _ratio(r, mp.log(2), lambda r: (mpf(2) ** r - 1) / r),
        lambda r: r,
        lambda r: r / mpf(2) ** r,
        _same(-0.5005, 0.5005),
    ),
    Kernel(
        "LOG",
        "log(1 + f) = f - f*f/2 + f*f*f*P(f) for sqrt(1/2) <= 1 + f <= sqrt(2)",
        lambda f: _ratio(f, mpf(1) / 3, lambda f: (mp.log1p(f) - f + f**2 / 2) / f**3),
        lambda f: f,
        lambda f: _ratio(f, mpf(0), lambda f: f**3 / mp.log1p(f)),
        {"f32": (-0.2930, 0.4144)},
    ),
    Kernel(
        "ATANH",
        "log(m) = 2*z + z**3*P(z*z), z = (m - 1)/(m + 1), for sqrt(1/2) <= m <= sqrt(2)",
        lambda z: _ratio(z, mpf(2) / 3, lambda z: (2 * mp.atanh(z) - 2 * z) / z**3),
        lambda z: z * z,
        lambda z: _ratio(z, mpf(0), lambda z: z**3 / (2 * mp.atanh(z))),
        _same(0.0, 0.17162),
    ),
    Kernel(
        "ATANH5",
        "log(m) = 2*z + 2/3*z**3 + z**5*P(z*z) with z as above; much more exact, for pow",
        lambda z: _ratio(z, mpf(2) / 5, lambda z: (2 * mp.atanh(z) - 2 * z - mpf(2) / 3 * z**3) / z**5),
        lambda z: z * z,
        lambda z: _ratio(z, mpf(0), lambda z: z**5 / (2 * mp.atanh(z))),
        _same(0.0, 0.17162),
        extra_bits=9,
    ),
    Kernel(
        "ERF",
        "erf(x) = 1 - exp(-x*P(t)) for 0 <= x <= 5.9375, t = x/4 - 3/4",
        _hazard,
        lambda x: x,
        _erf_weight,
        {"f64": (0.0, 5.9375)},
    ),
    Kernel(
        "ERFC",
        "erfc(x) = t*exp(-x*x)*P(t - 1/2), t = 2/(2 + x), for 0.46 <= x <= 10.2 (f32) and <= 27.5 (f64)",
        _scaled_erfc,
        lambda t: t - mpf(1) / 2,
        lambda t: 1 / _scaled_erfc(t),
        {"f32": (0.1638, 0.8131), "f64": (0.0677, 0.8131)},
    ),
    Kernel(
        "SIN",
        "sin(r) = r + r**3*P(r*r) for |r| <= pi/4",
        lambda r: _ratio(r, -mpf(1) / 6, lambda r: (mp.sin(r) - r) / r**3),
        lambda r: r * r,
        lambda r: _ratio(r, mpf(0), lambda r: r**3 / mp.sin(r)),
        _same(0.0, 0.7860),
    ),
    Kernel(
        "COS",
        "cos(r) = 1 - r*r/2 + r**4*P(r*r) for |r| <= pi/4",
        lambda r: _ratio(r, mpf(1) / 24, lambda r: (mp.cos(r) - 1 + r**2 / 2) / r**4),
        lambda r: r * r,
        lambda r: r**4 / mp.cos(r),
        _same(0.0, 0.7860),
    ),
    Kernel(
        "ATAN",
        "atan(x) = x + x**3*P(x*x) for |x| <= 1",
        lambda x: _ratio(x, -mpf(1) / 3, lambda x: (mp.atan(x) - x) / x**3),
        lambda x: x * x,
        lambda x: _ratio(x, mpf(0), lambda x: x**3 / mp.atan(x)),
        _same(0.0, 1.0),
    ),
    Kernel(
        "ASIN",
        "asin(x) = x + x**3*P(x*x) for |x| <= 1/2",
        lambda x: _ratio(x, mpf(1) / 6, lambda x: (mp.asin(x) - x) / x**3),
        lambda x: x * x,
        lambda x: _ratio(x, mpf(0), lambda x: x**3 / mp.asin(x)),
        _same(0.0, 0.5001),
    ),
)


@dataclass(frozen=True)
class _Point:
    variable: mpf
    value: mpf
    weight: mpf


def _points(kernel: Kernel, dtype: str) -> list[_Point]:
    """Chebyshev nodes: least squares on them is within a small factor of minimax."""
    low, high = (mpf(v) for v in kernel.interval[dtype])
    points = []
    for i in range(NODES):
        x = (low + high) / 2 - (high - low) / 2 * mp.cos(mp.pi * (i + mpf(1) / 2) / NODES)
        variable = kernel.variable(x)
        if kernel.name == "ERF":
            variable = (variable - ERF_CENTER) / ERF_SCALE
        points.append(_Point(variable, kernel.function(x), kernel.weight(x)))
    return points


def _horner(coefficients: list[mpf], x: mpf) -> mpf:
    total = mpf(0)
    for c in reversed(coefficients):
        total = total * x + c
    return total


def _error(point: _Point, coefficients: list[mpf]) -> mpf:
    return (_horner(coefficients, point.variable) - point.value) * point.weight


def least_squares(points: list[_Point], fixed: list[mpf], degree: int) -> list[mpf]:
    """Coefficients whose first ones are ``fixed``, with the least weighted squared error."""
    free = degree + 1 - len(fixed)
    matrix, right = mp.matrix(free, free), mp.matrix(free, 1)
    for p in points:
        powers = [p.weight * p.variable ** (len(fixed) + i) for i in range(free)]
        rest = p.weight * (p.value - _horner(fixed, p.variable))
        for i in range(free):
            right[i] += powers[i] * rest
            for j in range(i, free):
                matrix[i, j] += powers[i] * powers[j]
    for i in range(free):
        for j in range(i):
            matrix[i, j] = matrix[j, i]
    solution = mp.lu_solve(matrix, right)
    return fixed + [solution[i] for i in range(free)]


def erf_quotient() -> tuple[list[float], list[float], float]:
    """P and Q of ``erf(x) = x * P(x*x) / Q(x*x)`` with ``Q(0) = 1``, as f32, and the error's logarithm.

    Linear least squares for ``P - f*(Q - 1) = f``, weighted by the last Q until it settles.
    """
    degree, columns = ERF_DEGREE, 2 * ERF_DEGREE + 1
    points = []
    for i in range(NODES):
        x = mpf(ERF_LIMIT) / 2 * (1 - mp.cos(mp.pi * (i + mpf(1) / 2) / NODES))
        points.append((x * x, mp.erf(x) / x))
    top, bottom = [mpf(1)], [mpf(1)]
    for _ in range(8):
        matrix, right = mp.matrix(columns, columns), mp.matrix(columns, 1)
        for t, f in points:
            weight = 1 / (f * _horner(bottom, t))
            row = [weight * t**k for k in range(degree + 1)]
            row += [-weight * f * t**k for k in range(1, degree + 1)]
            for a in range(columns):
                right[a] += row[a] * weight * f
                for b in range(columns):
                    matrix[a, b] += row[a] * row[b]
        solution = mp.lu_solve(matrix, right)
        top = [solution[k] for k in range(degree + 1)]
        bottom = [mpf(1), *(solution[degree + k] for k in range(1, degree + 1))]
    top, bottom = ([round_to(c, PRECISION["f32"]) for c in side] for side in (top, bottom))
    error = max(abs(_horner(top, t) / _horner(bottom, t) / f - 1) for t, f in points)
    return [float(c) for c in top], [float(c) for c in bottom], float(mp.log(error, 2))


def round_to(value: mpf, bits: int) -> mpf:
    """The nearest number with ``bits`` significant bits."""
    if not value:
        return value
    exponent = int(mp.floor(mp.log(abs(value), 2))) + 1 - bits
    return mpf(int(mp.nint(value / mpf(2) ** exponent))) * mpf(2) ** exponent


def fit(kernel: Kernel, dtype: str) -> tuple[list[float], float]:
    """Rounded coefficients of the smallest sufficient degree, and the error's base-2 logarithm."""
    points = _points(kernel, dtype)
    wanted = WANTED[dtype] / 2**kernel.extra_bits
    degree = 1
    while _largest(points, least_squares(points, [], degree)) > wanted:
        degree += 1
    fixed: list[mpf] = []
    for _ in range(degree + 1):
        coefficients = least_squares(points, fixed, degree)
        fixed.append(round_to(coefficients[len(fixed)], PRECISION[dtype]))
    return [float(c) for c in fixed], float(mp.log(_largest(points, fixed), 2))


def _largest(points: list[_Point], coefficients: list[mpf]) -> mpf:
    return max(abs(_error(p, coefficients)) for p in points)


def split(value: mpf, widths: list[int]) -> list[float]:
    """``value`` as a sum of numbers with these many significant bits, each truncated."""
    parts = []
    for width in widths:
        exponent = int(mp.floor(mp.log(abs(value), 2))) + 1 - width
        part = mpf(int(value / mpf(2) ** exponent)) * mpf(2) ** exponent
        parts.append(float(part))
        value -= part
    return parts


def _listing(name: str, table: dict[str, list[float]], comment: str) -> list[str]:
    """One table; one number per line, as the formatter would have it."""
    lines = [f"{name}: Table = {{"]
    for dtype, values in table.items():
        lines += [f"    DType.{dtype.upper()}: (", *(f"        {v!r}," for v in values), "    ),"]
    return [*lines, "}", f'"""{comment}"""', ""]


def _check_f32(values: list[float]) -> None:
    for value in values:
        if struct.unpack("<f", struct.pack("<f", value))[0] != value:
            raise AssertionError(f"{value} is not an f32")


def generate() -> str:
    """The text of the coefficients module."""
    mp.dps = DIGITS
    lines = [
        '"""Generated by tools/gen_polynomials.py: do not edit. Lowest order first."""',
        "",
        "from mansard.dtypes import DType",
        "",
        "Table = dict[DType, tuple[float, ...]]",
        "",
    ]
    for kernel in KERNELS:
        table, notes = {}, []
        for dtype in kernel.interval:
            table[dtype], error = fit(kernel, dtype)
            notes.append(f"{dtype} 2**{error:.1f}")
            print(kernel.name, dtype, len(table[dtype]) - 1, f"2**{error:.2f}", file=sys.stderr)
        if "f32" in table:
            _check_f32(table["f32"])
        comment = f"{kernel.formula}.\n\nLargest relative error: {', '.join(notes)}.\n"
        lines += _listing(kernel.name, table, comment)
    lines += _erf_tables()
    lines += _constants()
    return "\n".join(lines)


def _erf_tables() -> list[str]:
    top, bottom, error = erf_quotient()
    _check_f32([*top, *bottom])
    print("ERF quotient", f"2**{error:.2f}", file=sys.stderr)
    formula = f"erf(x) = x*P(x*x)/Q(x*x) for |x| <= {ERF_LIMIT}: "
    lines = _listing("ERF_P", {"f32": top}, f"{formula}P. Relative error of the quotient: 2**{error:.1f}.")
    return lines + _listing("ERF_Q", {"f32": bottom}, f"{formula}Q.")


def _constants() -> list[str]:
    ln2 = {"f32": split(mp.log(2), [15, 24]), "f64": split(mp.log(2), [41, 53])}
    half_pi = {"f32": split(mp.pi / 2, [8, 8, 8, 8, 8, 24]), "f64": split(mp.pi / 2, [33, 33, 33, 53])}
    # Halves of 1/ln(2) with few bits, so that a product with the high one is exact.
    log2e = {"f32": split(1 / mp.log(2), [12, 24]), "f64": split(1 / mp.log(2), [26, 53])}
    thirds = {"f32": split(mpf(2) / 3, [24, 24]), "f64": split(mpf(2) / 3, [53, 53])}
    words = _two_over_pi(40)
    listed = [words >> (32 * (39 - i)) & 0xFFFFFFFF for i in range(40)]
    lines = _listing("LN2", ln2, "ln(2) in two parts; the first times any exponent is exact.")
    lines += _listing(
        "HALF_PI", half_pi, "pi/2 in parts; a quotient of the direct range times each is exact."
    )
    lines += _listing("LOG2E", log2e, "1/ln(2) in two parts, the first with half of the significand's bits.")
    lines += _listing("TWO_THIRDS", thirds, "2/3 in two parts.")
    lines += ["TWO_OVER_PI = (", *(f"    0x{w:08X}," for w in listed), ")"]
    return [*lines, '"""Bits of 2/pi after the binary point, 32 in a word."""', ""]


def _two_over_pi(words: int) -> int:
    with mp.workprec(32 * words + 64):
        return int(mp.floor(2 / mp.pi * mpf(2) ** (32 * words)))


def main() -> int:
    """Write the module, or compare with ``--check``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail when the file differs")
    arguments = parser.parse_args()
    text = generate()
    if arguments.check:
        return 0 if OUTPUT.read_text() == text else 1
    OUTPUT.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
