"""The peers by name. A peer's module is imported where it is measured, never its packages here."""

from __future__ import annotations

from benchmarks.harness.peers.base import Peer
from benchmarks.harness.peers.executorch_ import ExecuTorchXnnpack
from benchmarks.harness.peers.iree_ import Iree
from benchmarks.harness.peers.litert_ import LiteRt
from benchmarks.harness.peers.llama_cpp_ import LlamaCpp
from benchmarks.harness.peers.mansard_ import Mansard, MansardBf16
from benchmarks.harness.peers.onnxruntime_ import OnnxRuntime
from benchmarks.harness.peers.openvino_ import OpenVino, OpenVinoDefault
from benchmarks.harness.peers.torch_ import TorchCompile, TorchEager

_ORDER: tuple[Peer, ...] = (
    Mansard(),
    MansardBf16(),
    TorchEager(),
    TorchCompile(),
    OnnxRuntime(),
    OpenVino(),
    OpenVinoDefault(),
    Iree(),
    ExecuTorchXnnpack(),
    LiteRt(),
    LlamaCpp(),
)
PEERS: dict[str, Peer] = {peer.name: peer for peer in _ORDER}
OURS = ("mansard", "mansard-bf16")

__all__ = ["OURS", "PEERS", "Peer"]
