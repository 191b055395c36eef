"""Compile the encoder, run it, and compare it with PyTorch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mansard.demo.encoder import MAX_TOKENS, Batch, Floats, build_encoder, reference, tokenize
from mansard.errors import InputError
from mansard.hal import HOST_DEVICE, DeviceInfo, registry
from mansard.plan.plan import Decision

SENTENCES = (
    "The slates of the roof are wet with rain.",
    "It has been raining on the tiles all day.",
    "A compiler turns a program into machine code.",
    "The graphics card and the processor share the work.",
    "GPU and CPU compute at the same time.",
    "She poured herself another cup of tea.",
)
MAX_SENTENCES = 64
MIN_SHARE = 1 / 3
"""The minimum share of the dispatches for each of several devices given by name."""

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Options:
    """The options of a demo run."""

    devices: tuple[str, ...] = ()
    """Devices by name; empty for all usable ones."""
    length: int | None = None
    """A fixed number of tokens to compile for; None compiles for any number up to 256."""
    runs: int = 5
    """Timed calls, after one that is not timed; the latency is their median."""


@dataclass(frozen=True)
class Result:
    """The results of the demo. Times are in milliseconds unless their name says otherwise."""

    sentences: tuple[str, ...]
    embeddings: Floats
    similarity: Floats
    """Cosines, ``(sentences, sentences)``."""
    max_rel_error: float
    """``max |y - reference| / max |reference|`` against PyTorch on the CPU."""
    latency_ms: float
    torch_latency_ms: float
    compile_s: float
    devices: Mapping[str, Mapping[str, Any]]
    """By device: ``dispatches`` and ``busy_ms`` of one profiled call."""
    decisions: tuple[Decision, ...]
    notes: tuple[str, ...]


def usable_devices() -> list[DeviceInfo]:
    """Every usable device that computes (simulated ones do not)."""
    return [info for info in registry.devices() if info.supported and not info.is_stand_in]


def run_demo(sentences: Sequence[str], options: Options, progress: Progress | None = None) -> Result:
    """Encode the sentences with a model compiled for the devices, and measure.

    Raises InputError for no sentences or more than `MAX_SENTENCES`, and the errors of compiling and running.
    """
    if not 1 <= len(sentences) <= MAX_SENTENCES:
        raise InputError(f"the demo takes 1 to {MAX_SENTENCES} sentences, not {len(sentences)}")
    present = usable_devices()
    devices = options.devices or tuple(info.id for info in present)
    for name in devices:
        registry.open_device(name)  # an unusable device is reported before the work starts
    report = progress or (lambda step, done, total: None)
    report("load the model", 0, 1)
    batch = tokenize(sentences, options.length)
    encoder = build_encoder()
    expected = reference(encoder, batch)
    # Before Mansard's own threads exist, so that neither measurement disturbs the other.
    torch_latency = median_ms(lambda: reference(encoder, batch), options.runs)

    begin = time.perf_counter()
    model = compile_encoder(encoder, batch, devices, options, progress)
    compile_s = time.perf_counter() - begin

    embeddings = np.asarray(model(batch.ids, batch.mask))
    latency = median_ms(lambda: model(batch.ids, batch.mask), options.runs)
    profile = model.profile(batch.ids, batch.mask)
    return Result(
        sentences=tuple(sentences),
        embeddings=embeddings,
        similarity=embeddings @ embeddings.T,
        max_rel_error=max_rel_error(embeddings, expected),
        latency_ms=latency,
        torch_latency_ms=torch_latency,
        compile_s=compile_s,
        devices=_with_idle(profile.devices, devices),
        decisions=tuple(model.explain().rows),
        notes=notes(present, devices),
    )


def compile_encoder(
    encoder: Any, batch: Batch, devices: Sequence[str], options: Options, progress: Progress | None
) -> Any:
    """The encoder compiled for this many sentences of any length, or of a fixed one."""
    import torch

    import mansard

    dynamic = None
    if options.length is None:
        shape = {1: mansard.Dim("tokens", min=2, max=MAX_TOKENS)}
        dynamic = {"ids": shape, "mask": shape}
    asked_for_several = len(options.devices) > 1
    return mansard.compile(
        encoder,
        (torch.from_numpy(batch.ids), torch.from_numpy(batch.mask)),
        devices=list(devices),
        dynamic_shapes=dynamic,
        placement=mansard.PlacementOptions(min_share=MIN_SHARE) if asked_for_several else None,
        progress=progress,
    )


def median_ms(call: Callable[[], Any], runs: int) -> float:
    """The median wall time of ``runs`` calls in milliseconds, after one that is not timed."""
    call()
    times = []
    for _ in range(runs):
        begin = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - begin) / 1e6)
    return statistics.median(times)


def max_rel_error(values: Floats, expected: Floats) -> float:
    """``max |values - expected| / max |expected|``; infinite when a value is not finite."""
    if not np.isfinite(values).all():
        return float("inf")
    difference = np.abs(values.astype(np.float64) - expected.astype(np.float64)).max()
    return float(difference / np.abs(expected).max())


def notes(present: Sequence[DeviceInfo], devices: Sequence[str]) -> tuple[str, ...]:
    """Notes on the devices used: no GPU, or a software implementation."""
    used = [info for info in present if info.id in devices]
    lines = []
    if all(info.driver == HOST_DEVICE for info in used):
        other = [info for info in registry.devices() if info.driver != HOST_DEVICE and not info.is_stand_in]
        reasons = "; ".join(f"{info.id}: {', '.join(info.reasons)}" for info in other if info.reasons)
        chosen = len(used) < len(present)
        why = "as requested" if chosen else (reasons or "no GPU driver was found")
        lines.append(f"Running on the CPU alone ({why}).")
    lines += [
        f"{info.id} is {info.name}, a software driver: it runs on the CPU's cores too."
        for info in used
        if info.kind == "software"
    ]
    return tuple(lines)


def _with_idle(
    measured: Mapping[str, Mapping[str, Any]], devices: Sequence[str]
) -> dict[str, Mapping[str, Any]]:
    """The profile's figures, with zeros for devices without dispatches."""
    idle: dict[str, Mapping[str, Any]] = {name: {"dispatches": 0, "busy_ms": 0.0} for name in devices}
    return idle | dict(measured)
