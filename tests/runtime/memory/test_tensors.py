"""What a model accepts: kinds of tensors, element types, shapes; and the errors for the rest."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from mansard import dims
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.errors import InputError, ShapeContractError
from mansard.plan.plan import TensorSpec
from mansard.runtime.memory.signature import Signature
from mansard.runtime.memory.tensors import empty, to_array, to_torch

N = Dim("n", 1, 8, 2)
M = Dim("m", 1, 100)
n, m = dims.symbol(N), dims.symbol(M)


def signature(*specs: TensorSpec) -> Signature:
    return Signature(specs, (N, M))


def f32(name: str, *shape) -> TensorSpec:
    return TensorSpec(name, DType.F32, shape, 0)


def zeros(*shape, dtype=np.float32) -> np.ndarray:
    return np.zeros(shape, dtype=dtype)


# Kinds --------------------------------------------------------------------------------------------


def test_numpy_arrays_are_taken_as_they_are():
    array = zeros(2, 3)
    prepared = signature(f32("x", 2, 3)).prepare([array], {})
    assert prepared.arrays[0] is array
    assert not prepared.torch
    assert prepared.copied == (0, 0)


@pytest.mark.parametrize("dtype", [d for d in DType if d.bits >= 8])
def test_torch_tensors_share_their_memory_both_ways(dtype):
    kind = {"f32": "float32", "f64": "float64", "f16": "float16", "bf16": "bfloat16", "f8": "float8_e4m3fn",
            "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8", "bool": "bool",
            "u64": "uint64", "u32": "uint32", "u16": "uint16", "u8": "uint8"}[
        dtype.value
    ]  # fmt: skip
    tensor = torch.arange(6).reshape(2, 3).to(getattr(torch, kind))
    prepared = signature(TensorSpec("x", dtype, (2, 3), 0)).prepare([tensor], {})
    (array,) = prepared.arrays
    assert prepared.torch
    assert array.ctypes.data == tensor.data_ptr()
    back = to_torch(array)
    assert back.dtype == tensor.dtype
    assert back.data_ptr() == tensor.data_ptr()
    assert array.astype(np.float64).tolist() == tensor.double().tolist()


def test_gradients_and_strides_are_no_obstacle():
    tensor = torch.ones(3, 2, requires_grad=True).t()
    prepared = signature(f32("x", 2, 3)).prepare([tensor], {})
    assert prepared.arrays[0].flags.c_contiguous
    assert prepared.copied == (1, 24)
    half = torch.ones(3, 2, dtype=torch.bfloat16).t()
    (array,) = signature(TensorSpec("x", DType.BF16, (2, 3), 0)).prepare([half], {}).arrays
    assert array.dtype == ml_dtypes.bfloat16
    assert array.flags.c_contiguous


def test_anything_with_dlpack_is_read_in_place():
    class Wrapped:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    prepared = signature(f32("x", 2, 3)).prepare([Wrapped(array)], {})
    assert prepared.arrays[0].ctypes.data == array.ctypes.data
    assert not prepared.torch

    class Elsewhere(Wrapped):
        def __dlpack_device__(self):
            return (2, 0)

    with pytest.raises(InputError, match=r"'x' is not in host memory \(DLPack device type 2\)"):
        signature(f32("x", 2, 3)).prepare([Elsewhere(array)], {})


def test_foreign_byte_order_and_odd_alignment_are_copied():
    swapped = np.arange(4, dtype=">f4")
    (array,) = signature(f32("x", 4)).prepare([swapped], {}).arrays
    assert array.dtype == np.float32
    assert array.tolist() == [0, 1, 2, 3]
    odd = np.zeros(17, dtype=np.uint8)[1:].view(np.float32)
    (array,) = signature(f32("x", 4)).prepare([odd], {}).arrays
    assert array.flags.aligned


def test_numbers_go_where_a_scalar_belongs():
    spec = TensorSpec("s", DType.I32, (), 0)
    assert to_array(7, spec).tolist() == 7
    for wrong, message in (
        (1.5, "is the float 1.5"),
        (True, "is the bool True"),
        (1 << 40, "does not fit into i32"),
    ):
        with pytest.raises(InputError, match=message):
            to_array(wrong, spec)
    assert to_array(True, TensorSpec("s", DType.BOOL, (), 0)).dtype == bool
    assert to_array(2, TensorSpec("s", DType.F32, (), 0)).dtype == np.float32


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1.0, 2.0], r"'x' is a list; the model takes x: f32\[2\] as a NumPy array"),
        (None, "is a NoneType"),
        (3.0, "is a float"),
        ("text", "is a str"),
        (zeros(2, dtype=np.float64), "element type float64; the model takes float32"),
        (torch.zeros(2, dtype=torch.bfloat16), "element type bfloat16; the model takes float32"),
        (torch.zeros(2, device="meta"), "torch tensor on meta"),
        (torch.zeros(2).to_sparse(), "sparse"),
        (np.zeros(2, dtype=object), "element type object"),
    ],
)
def test_other_kinds_are_refused_by_name(value, message):
    with pytest.raises(InputError, match=message):
        signature(f32("x", 2)).prepare([value], {})


# Names and numbers --------------------------------------------------------------------------------


def test_inputs_go_by_position_or_name():
    both = signature(f32("a", 1), f32("b", 2))
    for args, named in (
        ([zeros(1), zeros(2)], {}),
        ([zeros(1)], {"b": zeros(2)}),
        ([], {"b": zeros(2), "a": zeros(1)}),
    ):
        assert [x.size for x in both.prepare(args, named).arrays] == [1, 2]


@pytest.mark.parametrize(
    ("args", "named", "message"),
    [
        ([0] * 3, {}, r"3 inputs were given; the model takes 2: a: f32\[1\], b: f32\[2\]"),
        ([0], {}, "missing inputs: b"),
        ([], {}, "missing inputs: a, b"),
        ([0], {"a": 0}, "'a' is given twice"),
        ([0], {"c": 0}, "no input 'c'; its inputs: a: f32"),
    ],
)
def test_wrong_numbers_and_names(args, named, message):
    with pytest.raises(InputError, match=message):
        signature(f32("a", 1), f32("b", 2)).prepare(args, named)


def test_packed_inputs_are_refused_when_the_model_is_opened():
    with pytest.raises(InputError, match="packed i4"):
        signature(TensorSpec("x", DType.I4, (2,), 0))


# Shapes -------------------------------------------------------------------------------------------


def test_symbols_are_bound_by_the_shapes():
    s = signature(f32("a", n, 3), f32("b", dims.add(dims.mul(n, 2), 1), m))
    assert s.prepare([zeros(4, 3), zeros(9, 7)], {}).dims == {"n": 4, "m": 7}


def test_a_symbol_inside_an_expression_is_solved_for():
    s = signature(f32("a", dims.add(dims.mul(n, 3), 1)))
    assert s.prepare([zeros(13)], {}).dims == {"n": 4}
    with pytest.raises(ShapeContractError, match="axis 0 is 12; no 'n' makes"):
        s.prepare([zeros(12)], {})
    with pytest.raises(ShapeContractError, match=r"'n' is 10.*1 to 8"):
        s.prepare([zeros(31)], {})


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((4, 3), (4,)), None),
        (((4, 2), (4,)), "input 'a', axis 1 is 2; the model was compiled for 3"),
        (((10, 3), (10,)), "input 'a', axis 0: dim 'n' is 10; the model was compiled for 1 to 8"),
        (((3, 3), (3,)), "dim 'n' is 3; the model was compiled for multiples of 2"),
        (((4, 3), (6,)), r"input 'b', axis 0: dim 'n' is 6, but it is 4 at input 'a', axis 0"),
    ],
)
def test_the_contract_is_named(shapes, message):
    s = signature(f32("a", n, 3), f32("b", n))
    arrays = [zeros(*shape) for shape in shapes]
    if message is None:
        assert s.prepare(arrays, {}).dims == {"n": 4}
    else:
        with pytest.raises(ShapeContractError, match=message):
            s.prepare(arrays, {})


def test_rank_and_expressions_are_checked():
    with pytest.raises(InputError, match=r"'a' has rank 1 \(shape \[3\]\); the model takes a: f32\[n, 3\]"):
        signature(f32("a", n, 3)).prepare([zeros(3)], {})
    s = signature(f32("a", n), f32("b", dims.mul(n, 2)))
    with pytest.raises(ShapeContractError, match=r"'b', axis 0 is 9; the model needs 2\*n = 8 \(n=4\)"):
        s.prepare([zeros(4), zeros(9)], {})
    with pytest.raises(InputError, match="do not tell"):
        signature(f32("a", dims.mul(n, m))).prepare([zeros(4)], {})


def test_aligned_arrays():
    for shape in ((), (0,), (3, 5)):
        array = empty(shape, np.dtype(np.float32), 4096)
        assert array.shape == shape
        assert array.size == 0 or array.ctypes.data % 4096 == 0
        array[...] = 1


# Again ----------------------------------------------------------------------------------------------


def test_what_was_accepted_once_does_not_let_other_things_pass():
    wanted = signature(f32("x", n, 3), f32("y", n))
    good = [zeros(4, 3), zeros(4)]
    for _ in range(2):
        prepared = wanted.prepare(good, {})
        assert (prepared.dims, prepared.copied) == ({"n": 4}, (0, 0))
        assert all(a is b for a, b in zip(prepared.arrays, good, strict=True))
    with pytest.raises(InputError, match="element type float64"):
        wanted.prepare([good[0], zeros(4, dtype=np.float64)], {})
    with pytest.raises(ShapeContractError, match="dim 'n' is 6, but it is 4"):
        wanted.prepare([good[0], zeros(6)], {})
    with pytest.raises(InputError, match="rank 1"):
        wanted.prepare([zeros(4), zeros(4)], {})
    with pytest.raises(InputError, match="missing inputs: y"):
        wanted.prepare(good[:1], {})
    with pytest.raises(InputError, match="given twice"):
        wanted.prepare(good, {"y": good[1]})
    strided = wanted.prepare([zeros(4, 6)[:, ::2], good[1]], {})
    assert strided.copied == (1, 48)
    assert strided.arrays[0].flags.c_contiguous
    mixed = wanted.prepare([torch.zeros(4, 3), good[1]], {})
    assert mixed.torch
    assert mixed.dims == {"n": 4}


def test_any_number_of_shapes_is_accepted():
    wanted = signature(f32("x", m))
    for size in range(1, 101):
        assert wanted.prepare([zeros(size)], {}).dims == {"m": size}
        assert wanted.prepare([], {"x": zeros(size)}).dims == {"m": size}
    with pytest.raises(ShapeContractError):
        wanted.prepare([zeros(101)], {})
