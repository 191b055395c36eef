"""Bags of embedded rows beside eager: modes, weights of samples, empty bags, padding, rows of other bags."""

import pytest
import torch

import mansard

DEVICES = ["cpu", pytest.param("vulkan", marks=pytest.mark.vulkan)]
INDICES = torch.tensor([1, 4, 9, 0, 3, 3, 7])


class Bags(torch.nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, table, indices, offsets, weights=None):
        return torch.nn.functional.embedding_bag(
            indices, table, offsets, per_sample_weights=weights, **self.options
        )


def check(module, inputs, device):
    with mansard.compile(module, inputs, devices=device, cache=False) as model:
        result = model(*inputs)
    torch.testing.assert_close(torch.as_tensor(result), module(*inputs), rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("sum", {"include_last_offset": True}),
        ("mean", {"padding_idx": 3}),
        ("max", {}),
        ("max", {"padding_idx": 3}),
    ],
    ids=str,
)
def test_bags(mode, options, device):
    offsets = [0, 2, 2, 5] + ([7] if options.get("include_last_offset") else [])
    inputs = (torch.randn(10, 5), INDICES, torch.tensor(offsets))
    check(Bags(mode=mode, **options), inputs, device)


@pytest.mark.parametrize("device", DEVICES)
def test_weights_of_samples(device):
    check(Bags(mode="sum"), (torch.randn(10, 5), INDICES, torch.tensor([0, 3]), torch.randn(7)), device)


@pytest.mark.parametrize("device", DEVICES)
def test_a_row_that_is_no_number_stays_in_its_bag(device):
    table = torch.randn(10, 5)
    table[9] = torch.nan
    table[0] = torch.inf
    check(Bags(mode="sum"), (table, INDICES, torch.tensor([0, 3, 4])), device)


@pytest.mark.parametrize("device", DEVICES)
def test_rows_of_indices(device):
    module = torch.nn.EmbeddingBag(10, 6, mode="mean").eval()
    check(module, (torch.tensor([[1, 2, 4], [4, 3, 9]]),), device)
