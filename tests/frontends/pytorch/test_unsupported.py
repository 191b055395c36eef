"""An import that fails names every op that is not supported, with its place in the user's source."""

from __future__ import annotations

import inspect

import pytest
import torch

import mansard
from mansard.errors import UnsupportedOpError
from mansard.frontends.pytorch.unsupported import with_others


class Several(torch.nn.Module):
    """Three ops without a lowering, one of them twice."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        energies = torch.linalg.eigh(x)[0]
        values = torch.rand_like(x)
        vectors = torch.linalg.svd(x)[0]
        return energies, values, vectors, torch.linalg.eigh(x + 1)[0]


def line_of(text: str) -> str:
    lines, first = inspect.getsourcelines(Several)
    return f"test_unsupported.py:{first + next(n for n, line in enumerate(lines) if text in line)}"


def test_all_are_named_with_their_lines() -> None:
    with pytest.raises(UnsupportedOpError) as caught:
        mansard.compile(Several(), torch.eye(3), devices="cpu")
    error = caught.value
    named = [(problem.op, problem.location) for problem in (error, *error.others)]
    assert named == [
        ("aten._linalg_eigh", line_of("energies =")),
        ("aten.rand_like", line_of("values =")),
        ("aten._linalg_svd", line_of("vectors =")),
    ]
    assert "(in `values = torch.rand_like(x)`)" in str(error)
    assert str(error).count("test_unsupported.py:") == 3


def test_one_is_named_once() -> None:
    class One(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.svd(x * 2)[0] + 1

    with pytest.raises(UnsupportedOpError, match=r"aten._linalg_svd") as caught:
        mansard.compile(One(), torch.eye(3), devices="cpu")
    assert caught.value.others == ()
    assert "test_unsupported.py" in caught.value.location


def test_a_number_that_an_op_takes_is_not_named_for_it() -> None:
    class Split(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first, second = torch.split(x, [1, 2])
            return torch.linalg.svd(x)[0] + first * second.sum()

    program = torch.export.export(Split(), (torch.eye(3),), strict=False)
    named = with_others(program, UnsupportedOpError("constant.bool", None, "no lowering"))
    assert [problem.op for problem in (named, *named.others)] == ["aten.linalg_svd"]
