"""The checked-in polynomials are those their generator makes."""

import importlib.util
import sys

import pytest
from support.paths import ROOT

from mansard.codegen.math import coefficients
from mansard.dtypes import DType

pytest.importorskip("mpmath")
from mpmath import mp, mpf


@pytest.fixture(scope="module")
def generator():
    path = ROOT / "tools/gen_polynomials.py"
    spec = importlib.util.spec_from_file_location("gen_polynomials", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    with mp.workdps(module.DIGITS):
        yield module
    del sys.modules[spec.name]


@pytest.mark.parametrize(
    ("name", "dtype"), [("SIN", "f32"), ("EXPM1", "f32"), ("ATANH", "f64"), ("COS", "f64")]
)
def test_tables_are_reproduced(generator, name, dtype):
    kernel = next(k for k in generator.KERNELS if k.name == name)
    fitted, error = generator.fit(kernel, dtype)
    assert tuple(fitted) == getattr(coefficients, name)[DType(dtype)]
    assert error < {"f32": -27, "f64": -57}[dtype]


def test_every_table_has_its_kernel(generator):
    for kernel in generator.KERNELS:
        assert {d.value for d in getattr(coefficients, kernel.name)} == set(kernel.interval)


def test_constants_are_split_without_loss(generator):
    for dtype, bits in ((DType.F32, 36), (DType.F64, 90)):
        for table, value in ((coefficients.LN2, mp.log(2)), (coefficients.HALF_PI, mp.pi / 2)):
            total = sum(mpf(part) for part in table[dtype])
            assert abs(total - value) < value * mpf(2) ** -bits
    word = coefficients.TWO_OVER_PI[0] * mpf(2) ** -32
    assert 0 < 2 / mp.pi - word < mpf(2) ** -32
