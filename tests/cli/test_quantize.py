"""`mansard compile --quantize int8 --calibration`."""

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from support.command_line import invoke

import mansard

GRAPH = """graph g
  input %x: 4x8xf32
  const %w: 3x8xf32 "w"
  %y: 4x3xf32 = generic (d0:4, d1:3 | d2:8) add {%x[d0, d2] * %w[d1, d2]}
  return %y as y
"""


def test_calibrated_quantisation(tmp_path: Path) -> None:
    (tmp_path / "net.mir").write_text(GRAPH)
    rng = np.random.default_rng(0)
    save_file({"w": rng.standard_normal((3, 8), np.float32)}, tmp_path / "net.safetensors")
    samples = rng.standard_normal((8, 8), np.float32)
    np.savez(tmp_path / "samples.npz", x=samples)
    artifact = tmp_path / "net.mansard"
    command = ["compile", tmp_path / "net.mir", "-o", artifact, "--device", "cpu", "--quantize", "int8"]
    result = invoke(*command, "--calibration", tmp_path / "samples.npz", "--ranges", "minmax")
    assert result.exit_code == 0 and "top-1 agreement" in result.output
    with mansard.load(artifact) as model:
        assert model.quantization.samples == 8 and model.quantization.ranges == "minmax"
        assert model(samples[:4]).shape == (4, 3)
    result = invoke(*command, "--calibration", tmp_path / "samples.npz", "--smoothing", "0.75")
    assert result.exit_code == 0 and "smoothing 0.75 of 0 sets of values" in result.output  # it has no norm
    with mansard.load(artifact) as model:
        assert model.quantization.smoothing == 0.75
    refused = invoke(*command, "--calibration", tmp_path / "net.mir")
    assert refused.exit_code == 2 and "is no .npz file" in refused.output
    assert "for --calibration" in invoke(*command, "--ranges", "mse").output
    assert "for --calibration" in invoke(*command, "--smoothing", "0.5").output
