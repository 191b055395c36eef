"""Writes a small language model with random weights, as an artifact with a tokenizer, to a folder.

    PYTHONPATH=.:tests python examples/ray_serve/tests/tiny_model.py FOLDER

It needs the packages that tests need, which the environment with Ray does not have.
"""

from __future__ import annotations

import sys
from pathlib import Path

from support.serving.running_server import write_served_model

import mansard

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    with mansard.load_lm(
        write_served_model(folder), devices="cpu", context=128, chunk=32, sequences=4, logprobs=True
    ) as lm:
        lm.save(folder / "tiny.mansard")
