"""Recurrent networks over many steps beside PyTorch and ONNX Runtime, on the same cores in the same run.

    python -m benchmarks.models.recurrent [--steps 100,200,500] [--devices cpu] [--threads 2] [--json FILE]

Each network is compiled from PyTorch without the kernel cache. ONNX Runtime runs the same weights in one
operator of ONNX a layer, with steps before sequences, as its operators have them; it is left out where it is
not installed. Pairs of calls are made in turn, and the shortest second one of each counts. Rows: case,
compile_s, first_ms (the first call, which records it), kernels, error (of the largest number), mansard_ms,
torch_ms, ort_ms.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import mansard
from benchmarks.harness.cases import relative_error

NETWORKS = {
    "LSTM 64-128, two layers": ("LSTM", 64, 128, 2, False, 1),
    "LSTM 64-128, both directions, 4 sequences": ("LSTM", 64, 128, 1, True, 4),
    "LSTM 80-512": ("LSTM", 80, 512, 1, False, 1),
    "GRU 40-100": ("GRU", 40, 100, 1, False, 1),
}
"""Kind, inputs, state, layers, both directions, batch."""
CALLS = 20
PAUSE = 0.02
"""Seconds in which threads of the peer before, which wait for work by spinning, leave the cores."""


def measure(name: str, steps: int, devices: str) -> dict[str, Any]:
    """The row of one network over a number of steps."""
    kind, width, state, layers, both, batch = NETWORKS[name]
    torch.manual_seed(0)
    network = getattr(torch.nn, kind)(width, state, layers, batch_first=True, bidirectional=both).eval()
    x = torch.randn(batch, steps, width)
    begin = time.perf_counter()
    model = mansard.compile(network, (x,), devices=devices, cache=False)
    row: dict[str, Any] = {"case": f"{name}, {steps} steps", "compile_s": time.perf_counter() - begin}
    row["kernels"] = sum(len(e.kernels) for d in model.plan.devices for e in d.executables)
    with model, torch.inference_mode():
        array = x.numpy()
        begin = time.perf_counter()
        result = np.asarray(model(array)[0])
        row["first_ms"] = 1e3 * (time.perf_counter() - begin)
        row["error"] = relative_error(result, network(x)[0].numpy())
        calls: dict[str, Callable[[], object]] = {
            "mansard_ms": lambda: model(array),
            "torch_ms": lambda: network(x),
        }
        if (session := _onnx_session(network, kind, x)) is not None:
            calls["ort_ms"] = session
        times: dict[str, list[float]] = {call: [] for call in calls}
        for _ in range(CALLS):
            for call, function in calls.items():
                time.sleep(PAUSE)
                function()
                begin = time.perf_counter()
                function()
                times[call].append(time.perf_counter() - begin)
    return row | {call: 1e3 * min(taken) for call, taken in times.items()}


def _onnx_session(network: Any, kind: str, x: torch.Tensor) -> Callable[[], object] | None:
    """A call of the network in ONNX Runtime, one operator a layer; None without ONNX Runtime."""
    try:
        import onnxruntime
        from onnx import TensorProto, helper, numpy_helper
    except ImportError:
        return None
    nodes, weights, value = [], [], "x"
    blocks = [0, 3, 1, 2] if kind == "LSTM" else [1, 0, 2]  # ONNX: iofc and zrh; PyTorch: ifgo and rzn
    for layer in range(network.num_layers):
        suffixes = ["", "_reverse"] if network.bidirectional else [""]
        parts = {
            part: np.stack([_reordered(network, f"{part}_l{layer}{s}", blocks) for s in suffixes])
            for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        }
        bias = np.concatenate([parts["bias_ih"], parts["bias_hh"]], 1)
        for name, data in (("w", parts["weight_ih"]), ("r", parts["weight_hh"]), ("b", bias)):
            weights.append(numpy_helper.from_array(np.ascontiguousarray(data), f"{name}{layer}"))
        options = {"linear_before_reset": 1} if kind == "GRU" else {}
        direction = "bidirectional" if network.bidirectional else "forward"
        inputs, output = [value, f"w{layer}", f"r{layer}", f"b{layer}"], f"y{layer}"
        size = network.hidden_size
        nodes.append(
            helper.make_node(kind, inputs, [output], hidden_size=size, direction=direction, **options)
        )
        # Steps, directions, batch, state: the directions go beside each other.
        nodes.append(helper.make_node("Transpose", [output], [f"t{layer}"], perm=[0, 2, 1, 3]))
        nodes.append(helper.make_node("Reshape", [f"t{layer}", "shape"], [f"h{layer}"]))
        value = f"h{layer}"
    weights.append(numpy_helper.from_array(np.array([0, 0, -1], np.int64), "shape"))
    steps_first = x.transpose(0, 1).contiguous().numpy()
    source = helper.make_tensor_value_info("x", TensorProto.FLOAT, steps_first.shape)
    target = helper.make_tensor_value_info(value, TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "recurrent", [source], [target], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options_of = onnxruntime.SessionOptions()
    options_of.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(model.SerializeToString(), options_of)
    (result,) = session.run(None, {"x": steps_first})
    with torch.inference_mode():
        np.testing.assert_allclose(result, network(x)[0].transpose(0, 1).numpy(), atol=1e-4)
    return lambda: session.run(None, {"x": steps_first})


def _reordered(network: Any, name: str, blocks: list[int]) -> np.ndarray:
    whole: np.ndarray = getattr(network, name).detach().numpy()
    parts = np.split(whole, len(blocks))
    return np.concatenate([parts[block] for block in blocks])


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", default="100,200,500")
    parser.add_argument("--devices", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    rows = []
    for name in NETWORKS:
        for steps in map(int, options.steps.split(",")):
            rows.append(measure(name, steps, options.devices))
            print(json.dumps(rows[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
