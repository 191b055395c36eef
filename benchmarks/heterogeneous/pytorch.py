"""PyTorch on the models of ``benchmarks.heterogeneous``, in the same process: each device alone, and by hand
on both.

What somebody would write who has PyTorch only: modules moved to devices, tensors moved between them, and, for
several requests in flight, a thread for each (PyTorch lets go of the interpreter lock inside its ops; on the
GPU every thread has a CUDA stream). On the GPU, sessions of fixed length are captured in a CUDA graph, the
fastest way for many small kernels. Results are compared with NumPy's as Mansard's are.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from benchmarks.heterogeneous.models import Example, FeedForward, Recommender

Rows = list[dict[str, Any]]
Call = Callable[[Sequence[Any]], Any]
"""From inputs to the output, both NumPy's. Raises what PyTorch raises."""


class _Session(torch.nn.Module):
    """The recurrent stage of a recommender: items (1, length) i64 to the hidden state (hidden) f32."""

    def __init__(self, weights: dict[str, torch.Tensor]) -> None:
        super().__init__()
        width = weights["within"].shape[0]
        self.table = weights["table"]
        self.gru = torch.nn.GRU(width, width, batch_first=True)
        with torch.no_grad():
            for name, key in (("ih", "into"), ("hh", "within")):
                getattr(self.gru, f"weight_{name}_l0").copy_(weights[key].T)
            self.gru.bias_ih_l0.copy_(weights["bias"])
            self.gru.bias_hh_l0.copy_(weights["inner"])

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        _, hidden = self.gru(self.table[items])
        return hidden[0, 0]


def _best(table: torch.Tensor, hidden: torch.Tensor, count: int) -> torch.Tensor:
    return torch.topk(table @ hidden, count).values[None]


def recommender(size: Recommender, example: Example) -> dict[str, Call]:
    """The two stages on the CPU, on the GPU (as a CUDA graph too), and one on each."""
    weights = {c.key: torch.from_numpy(c.load()) for c in example.graph.constants.values()}
    session = _Session(weights).eval()
    on_cpu: Call = lambda x: _best(weights["table"], session(torch.from_numpy(x[0])), size.best).numpy()  # noqa: E731
    calls = {"torch cpu": on_cpu}
    if torch.cuda.is_available():
        moved = {name: tensor.cuda() for name, tensor in weights.items()}
        there = _Session(moved).cuda().eval()
        local = threading.local()

        def on_gpu(x: Sequence[Any]) -> Any:
            items = torch.from_numpy(x[0]).cuda()
            return _best(moved["table"], there(items), size.best).cpu().numpy()

        def captured(x: Sequence[Any]) -> Any:
            if not hasattr(local, "graph"):
                local.graph = _captured(lambda items: _best(moved["table"], there(items), size.best), x[0])
            return local.graph(x[0])

        def by_hand(x: Sequence[Any]) -> Any:
            hidden = session(torch.from_numpy(x[0]))
            return _best(moved["table"], hidden.cuda(), size.best).cpu().numpy()

        calls |= {"torch gpu": on_gpu, "torch gpu, CUDA graph": captured, "torch by hand": by_hand}
    return calls


_CAPTURING = threading.Lock()


def _captured(run: Callable[[torch.Tensor], torch.Tensor], example: Any) -> Callable[[Any], Any]:
    """A call of a CUDA graph with memory of its own."""
    with _CAPTURING:
        inside, graph = torch.from_numpy(example).cuda(), torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                run(inside)
            stream.synchronize()
            with torch.cuda.graph(graph, stream=stream):
                outside = run(inside)

    def call(array: Any) -> Any:
        inside.copy_(torch.from_numpy(array))
        graph.replay()
        return outside.cpu().numpy()

    return call


def feed_forward(size: FeedForward, example: Example) -> dict[str, Call]:
    """All blocks on the CPU, on the GPU, and half of them on each; or the CPU's half brought to the GPU in
    every call, as offloading does (from pinned memory, a block ahead on a stream of its own)."""
    weights = {
        c.key: torch.from_numpy(c.load().view(np.int16)).view(torch.bfloat16)
        for c in example.graph.constants.values()
    }
    blocks = [[weights[f"block{n}.{part}"] for part in ("gate", "up", "down")] for n in range(size.blocks)]
    calls = {"torch cpu": lambda x: _forward(torch.from_numpy(x[0]), blocks).numpy()}
    if torch.cuda.is_available():
        half = size.blocks // 2
        moved = [[w.cuda() for w in block] for block in blocks]
        pinned = [[w.pin_memory() for w in block] for block in blocks[half:]]

        def on_both(x: Sequence[Any]) -> Any:
            y = _forward(torch.from_numpy(x[0]).cuda(), moved[:half])
            return _forward(y.cpu(), blocks[half:]).numpy()

        def offloaded(x: Sequence[Any]) -> Any:
            with copying:
                y = _forward(torch.from_numpy(x[0]).cuda(), moved[:half])
                return _forward(y, _brought(pinned, stream)).cpu().numpy()

        copying, stream = threading.Lock(), torch.cuda.Stream()
        calls |= {
            "torch gpu": lambda x: _forward(torch.from_numpy(x[0]).cuda(), moved).cpu().numpy(),
            "torch limited: half on each": on_both,
            "torch limited: brought each call": offloaded,
        }
    return calls


def _brought(blocks: Any, stream: torch.cuda.Stream) -> Any:
    """Blocks in the GPU's memory, each copied while the one before computes."""
    current = torch.cuda.current_stream()
    ahead = None
    for block in [*blocks, None]:
        coming = None
        if block is not None:
            with torch.cuda.stream(stream):
                coming = [w.to("cuda", non_blocking=True) for w in block]
        if ahead is not None:
            current.wait_stream(stream)
            for w in ahead:
                w.record_stream(current)
            yield ahead
        ahead = coming


def _forward(value: torch.Tensor, blocks: Any) -> torch.Tensor:
    """(1, width) f32 through gated blocks with weights in bf16, which PyTorch multiplies with bf16."""
    for gate_w, up_w, down_w in blocks:
        normal = torch.nn.functional.rms_norm(value, value.shape[1:], eps=1e-5).bfloat16()
        gate, up = normal @ gate_w.T, normal @ up_w.T
        value = value + ((torch.nn.functional.silu(gate) * up) @ down_w.T).float()
    return value


def product(example: Example) -> dict[str, Call]:
    """One large product on each device."""
    (constant,) = example.graph.constants.values()
    w = torch.from_numpy(constant.load())
    calls: dict[str, Call] = {"torch cpu": lambda x: (torch.from_numpy(x[0]) @ w).numpy()}
    if torch.cuda.is_available():
        moved = w.cuda()
        calls["torch gpu"] = lambda x: (torch.from_numpy(x[0]).cuda() @ moved).cpu().numpy()
    return calls


def rows(example: Example, calls: dict[str, Call], in_flight: int, seconds: float) -> Rows:
    """A row per way: latency of calls one after the other, and per request with several threads."""
    measured = []
    requests = [example.inputs(number) for number in range(8)]
    for name, call in calls.items():
        try:
            with torch.inference_mode():
                measured.append({"way": name, **_measured(call, example, requests, in_flight, seconds)})
        except (RuntimeError, torch.OutOfMemoryError) as error:
            measured.append({"way": name, "failed": str(error)})
    return measured


def _measured(
    call: Call, example: Example, requests: Sequence[Any], in_flight: int, seconds: float
) -> dict[str, Any]:
    expected = example.answer(0)
    error = float(np.abs(call(requests[0]) - expected).max() / np.abs(expected).max())
    times: list[float] = []
    end = time.perf_counter() + 2 * seconds
    while len(times) < 10 or time.perf_counter() < end:
        begin = time.perf_counter()
        call(requests[0])
        times.append((time.perf_counter() - begin) * 1e3)
    late = times[len(times) // 2 :]
    served = _served(call, requests, in_flight, max(2 * in_flight, int(seconds * 1e3 / min(late))))
    return {
        "error": error, "latency_ms": statistics.median(late), "least_ms": min(late), "in_flight": in_flight,
        "in_flight_ms": served,
    }  # fmt: skip


def _served(call: Call, requests: Sequence[Any], clients: int, count: int) -> float:
    """Milliseconds per request of ``count`` by threads that each wait for an answer: the least of three
    times, with all cores for every op, and with one."""

    def client(numbers: Any, cores: int) -> None:
        torch.set_num_threads(cores)
        stream = torch.cuda.stream(torch.cuda.Stream()) if torch.cuda.is_available() else nullcontext()
        with torch.inference_mode(), stream:
            for number in numbers:
                call(requests[number % len(requests)])

    def some(times: int, cores: int) -> float:
        begin = time.perf_counter()
        list(pool.map(client, [range(c, times, clients) for c in range(clients)], [cores] * clients))
        return (time.perf_counter() - begin) / times * 1e3

    with ThreadPoolExecutor(clients) as pool:
        rates, max_threads = [], torch.get_num_threads()
        for cores in (max_threads, 1):
            some(2 * clients, cores)
            rates += [some(count, cores) for _ in range(3)]
        torch.set_num_threads(max_threads)
    return min(rates)
