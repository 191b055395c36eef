"""Programs of vendors' libraries: written and read, and their tensors in memory."""

from __future__ import annotations

import numpy as np
import pytest

from mansard.hal.program import Program, Tensor

PROGRAM = Program(
    b"\0code",
    (Tensor("x", "float32", ("n", 2)),),
    (Tensor("y", "uint8", (3,)),),
    ("n", "a"),
    ("a",),
    {"precision": "f32"},
)


def test_a_program_is_read_as_it_was_written():
    assert Program.decode(PROGRAM.encode()) == PROGRAM


def test_damaged_programs_are_refused():
    code = PROGRAM.encode()
    for damaged in (b"", code[:-1], code + b"\0", b"X" + code[1:], code[:12] + b"[" + code[13:]):
        with pytest.raises(ValueError, match="program"):
            Program.decode(damaged)


def test_tensors_are_views_of_the_memories():
    x, y = np.zeros(64, np.uint8), np.arange(5, dtype=np.uint8)
    a, b = PROGRAM.arrays([x, y], [4, -1])
    assert (a.shape, b.shape) == ((4, 2), (3,))
    a[...] = 1
    assert x[:32].view("f4").tolist() == [1] * 8
    assert not x[32:].any()
    (limbs,) = PROGRAM.scalar_values([4, -3]).values()
    assert (limbs.dtype, limbs.tolist()) == (np.int32, [65533, 65535, 65535, 65535])


@pytest.mark.parametrize(
    ("sizes", "params"), [((64, 2), (4, 0)), ((64, 8), (9, 0)), ((64, 8), (-1, 0)), ((64,), (4, 0))]
)
def test_memories_that_do_not_fit_are_refused(sizes, params):
    with pytest.raises(ValueError, match=r"binding|argument"):
        PROGRAM.arrays([np.zeros(size, np.uint8) for size in sizes], params)
