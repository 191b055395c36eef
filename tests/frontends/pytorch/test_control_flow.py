"""torch.cond, while_loop and scan of PyTorch models, and functions that read tensors when they are traced."""

from __future__ import annotations

import pytest
import torch
from support.frontends.torch_import import Apply, check, import_and_check, import_and_check_all
from torch import nn
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

from mansard.errors import UnsupportedOpError
from mansard.frontends import import_model

X = torch.randn(3)


class Choice(nn.Module):
    """Branches with a weight, another condition inside, and an index that is in range in one of them only."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(3))

    def inner(self, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch.cond(x[0] > 1, lambda x, i: x * self.scale, lambda x, i: x[i], (x, i))

    def forward(self, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, self.inner, lambda x, i: x - 1, (x, i))


def test_conditions() -> None:
    module = Choice()
    graph = import_model(module, (X, torch.tensor([0, 1, 2])))
    for x in ([2.0, 0, 1], [0.5, 1, 2], [-1.0, -2, 0]):
        check(graph, module, (torch.tensor(x), torch.tensor([2, 1, 0])))
    # out of range where no branch reads it
    check(graph, module, (torch.tensor([2.0, 0, 1]), torch.tensor([2, 7, 0])))


def test_a_loop_that_counts_is_unrolled() -> None:
    def counted(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * 2 + i), (torch.tensor(0), x))

    import_and_check(counted, X)


def test_a_loop_with_a_bound_ends_where_its_condition_does() -> None:
    def bounded(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return while_loop(
            lambda i, x: (i < 6) & (x.sum() < 20), lambda i, x: (i + 1, x * 2), (torch.tensor(0), x)
        )

    module = Apply(bounded)
    graph = import_model(module, (X,))
    for x in ([1.0, 2, 3], [30.0, 1, 1], [-1.0, -1, -1], [0.1, 0.2, 0.3]):
        check(graph, module, (torch.tensor(x),))


@pytest.mark.slow  # one of the unsupported ops of test_frontend
def test_a_loop_without_a_bound_is_refused() -> None:
    def endless(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return while_loop(lambda x: x.sum() < 20, lambda x: (x * 2,), (x,))

    with pytest.raises(UnsupportedOpError, match=r"'while_loop' .*not known at import.*by constants alone"):
        import_model(Apply(endless), (X,))


def test_scans() -> None:
    def running(x: torch.Tensor, lines: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return scan(lambda carry, y: (carry + y, carry * y), x, lines)

    def reversed_lines(x: torch.Tensor, lines: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return scan(lambda carry, y: (carry * y, carry + 0), x, lines, reverse=True)

    import_and_check(lambda x, lines: (running(x, lines), reversed_lines(x, lines)), X, torch.randn(4, 3))


def test_functions_that_read_tensors() -> None:
    a = torch.randn(3, 4)
    weights = torch.tensor([1, 2, 1, 3]), torch.rand(4)
    import_and_check_all({
        "covariance": (lambda a: (torch.cov(a), torch.corrcoef(a), torch.cov(a[0], correction=0)), a),
        "weights": (lambda a, f, w: torch.cov(a, fweights=f, aweights=w), a, *weights),
        "equal": (lambda a, b: (torch.equal(a, b), torch.allclose(a, b), a.equal(a)), a, a.clone()),
        "close": (lambda a, b: (torch.equal(a, b), torch.allclose(a, b, atol=9)), a, a + 1),
    })  # fmt: skip


def test_products_of_bytes() -> None:
    a, b = (torch.randint(-128, 127, (20, 24), dtype=torch.int8) for _ in range(2))
    import_and_check(lambda a, b: torch._int_mm(a, b.t().contiguous()), a, b)
