"""Recurrent networks: every form of them, unrolled, compared with PyTorch."""

from __future__ import annotations

import pytest
import torch
from support.frontends.torch_import import (
    as_module,
    check,
    import_and_check,
    import_and_check_all,
    import_model,
)
from torch import nn

from mansard.errors import UnsupportedOpError

torch.manual_seed(0)
X = torch.randn(3, 2, 4)
CASES = {
    "lstm of two layers": nn.LSTM(4, 6, 2),
    "lstm in both directions": nn.LSTM(4, 6, 2, bidirectional=True),
    "lstm without biases": nn.LSTM(4, 6, bias=False),
    "lstm with projections": nn.LSTM(4, 6, 2, proj_size=3, bidirectional=True),
    "gru of two layers": nn.GRU(4, 6, 2, dropout=0.5),
    "gru in both directions": nn.GRU(4, 6, bidirectional=True, bias=False),
    "rnn": nn.RNN(4, 6, 2, bidirectional=True),
    "rnn with relu": nn.RNN(4, 6, nonlinearity="relu"),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections")  # of PyTorch's speed
def test_forms() -> None:
    import_and_check_all({name: (network, X) for name, network in CASES.items()})


def test_states_are_inputs_and_batches_come_first() -> None:
    lstm, gru = nn.LSTM(4, 6, batch_first=True), nn.GRU(4, 6, batch_first=True)
    h, c = torch.randn(1, 3, 6), torch.randn(1, 3, 6)
    import_and_check(lambda x, h, c: (lstm(x, (h, c)), gru(x, h)), torch.randn(3, 2, 4), h, c)


def test_one_sequence_without_a_batch() -> None:
    import_and_check(nn.LSTM(4, 6), X[:, 0])


@pytest.mark.filterwarnings("ignore:The tensor attributes")  # which torch.export shares
def test_networks_in_an_exported_program() -> None:
    """Of torch.export's own, in which they are ops of PyTorch."""
    network = nn.GRU(4, 6, 2, bidirectional=True)
    program = torch.export.export(network.eval(), (X,))
    check(import_model(program), network, (X,))


def test_last_outputs_of_a_batch_of_any_size() -> None:
    network = nn.LSTM(4, 6, 2, bidirectional=True)
    module = as_module(lambda x: network(x)[0][-1])
    graph = import_model(module, (X,), dynamic_shapes=({1: torch.export.Dim("b", min=1, max=9)},))
    for batch in (2, 1, 7):
        check(graph, module, (torch.randn(3, batch, 4),))


def test_sequences_of_any_length_are_refused() -> None:
    network = nn.GRU(4, 6)
    module = as_module(lambda x: network(x)[0])
    with pytest.raises(UnsupportedOpError, match=r"aten\.gru.*number of steps.*make that dim static"):
        import_model(module, (X,), dynamic_shapes=({0: torch.export.Dim("t", min=2, max=9)},))
