"""A model for the command line: a function that returns a module, example inputs and what may vary.

mansard compile examples/network.py:build -o network.mansard
mansard bench network.mansard --input 8x64xf32=random
"""

from __future__ import annotations

from typing import Any

import torch

import mansard


def build() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...], dict[str, Any]]:
    """A classifier for any batch of 1 to 32."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    return network.eval(), (torch.randn(2, 64),), {"input": {0: mansard.Dim("batch", min=1, max=32)}}
