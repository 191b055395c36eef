"""Compile a small network, run it, look at where it ran, save it and load it again.

python examples/first_model.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch

import mansard

network = torch.nn.Sequential(
    torch.nn.Linear(64, 256),
    torch.nn.GELU(),
    torch.nn.Linear(256, 10),
    torch.nn.Softmax(dim=-1),
).eval()
x = torch.randn(4, 64)

model = mansard.compile(network, (x,))
y = model(x)  # torch in, torch out; numpy in, numpy out
with torch.inference_mode():
    print("largest difference from PyTorch:", float((y - network(x)).abs().max()))
print(model.explain())

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "network.mansard"
    model.save(path)
    again = mansard.load(path)  # needs neither PyTorch nor the compiler
    print("the same after loading:", np.array_equal(again(x.numpy()), y.numpy()))
