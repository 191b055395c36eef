"""From a checkpoint to a model with the methods that generation calls."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mansard.api.compilation import model_of, target_names
from mansard.api.model import Model
from mansard.arguments import boolean
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.errors import CompileError, InputError
from mansard.hal import HOST_DEVICE
from mansard.language.description import Description
from mansard.language.experts import Counts, expert_count, place_experts, read_counts
from mansard.language.methods import UNRESTRICTED
from mansard.runtime.calls.limits import checked_int

if TYPE_CHECKING:
    import numpy.typing as npt

    from mansard.frontends.decoders.architecture import Architecture
    from mansard.frontends.decoders.checkpoint import Checkpoint
    from mansard.ir.graph import Graph
    from mansard.passes.products.quantisation import Quantisation
    from mansard.placement import PlacementOptions
    from mansard.placement.methods import MethodUse

FLOATS = {"f32": DType.F32, "f16": DType.F16, "bf16": DType.BF16}
"""Types of activations."""
CACHE_TYPES = {**FLOATS, "int8": DType.I8}
"""Types of the cache of keys and values."""
CHUNK = 512
"""New tokens that a prefill takes at most by default; longer prompts take several."""
TYPICAL_PROMPT, TYPICAL_ANSWER, TYPICAL_WINDOW = 128, 128, 4
PROPOSALS = 7
"""Proposed tokens that are verified in one call at most, by default."""
CONTEXT = 4096
"""Positions of the cache by default, where the model was trained on as many."""


def compile_language_model(
    path: str | os.PathLike[str],
    *,
    devices: str | Sequence[str] | None = None,
    context: int | None = None,
    chunk: int = CHUNK,
    fixed_chunk: bool = False,
    sequences: int = 1,
    cache_positions: int | None = None,
    proposals: int = 0,
    dtype: str | None = None,
    cache_dtype: str | None = None,
    quantize: str | Quantisation | None = None,
    memory: Mapping[str, int | str] | None = None,
    method_devices: Mapping[str, str] | None = None,
    placement: PlacementOptions | None = None,
    expert_device: str | None = None,
    expert_counts: str | os.PathLike[str] | npt.ArrayLike | None = None,
    logprobs: bool = False,
    cache: bool = True,
    progress: Callable[[str, int, int], None] | None = None,
) -> Model:
    """Compile a checkpoint to a model with the methods ``prefill``, ``decode`` and, for steps without top-k,
    top-p and min-p, ``decode_unrestricted``, and logits of all new tokens as its plain call
    (`mansard.frontends.decoders.decoder.build_decoder`); with ``logprobs`` also with ``prefill_scored`` and
    ``decode_scored``, which give log-probabilities beside the token, and with ``proposals`` also with
    ``verify`` for up to so many.

    With ``fixed_chunk`` prefills take exactly ``chunk`` tokens, of which the last may be padding, for devices
    whose toolchains take fixed shapes. With ``cache_positions``, so many positions in pages are shared by all
    sequences (`load_lm`).

    ``memory``, ``method_devices``, ``placement`` and those of experts say how it is placed over several
    devices (`load_lm`).

    Raises ImportModelError for a checkpoint that cannot be read or built, CompileError for limits that the
    architecture does not have, PlacementError for limits that no placement keeps.
    """
    from mansard import compiler
    from mansard.frontends.decoders.checkpoint import open_checkpoint
    from mansard.frontends.decoders.decoder import DecoderOptions, build_decoder
    from mansard.frontends.decoders.families import describe
    from mansard.frontends.decoders.layers.expert_groups import APART, OTHERS, WHOLE
    from mansard.frontends.decoders.layers.pages import PAGE
    from mansard.frontends.decoders.prefix_copy import build_prefix_copy, caches
    from mansard.passes.products.quantisation import STORED, checked_quantisation

    quantisation = checked_quantisation(quantize)
    checkpoint = open_checkpoint(path)
    stored = quantisation is not None and quantisation.kind == STORED
    if stored and not any(checkpoint.stored_type(name) for name in checkpoint.names):
        raise CompileError(
            f"quantize 'stored' is for checkpoints with weights of small integers, which {checkpoint.path} "
            "has not; 'int8' and 'int4' store weights as such"
        )
    architecture = describe(checkpoint.config)
    context = min(CONTEXT, architecture.max_positions) if context is None else checked_int("context", context)
    chunk, sequences = checked_int("chunk", chunk), checked_int("sequences", sequences)
    if not 2 <= context <= architecture.max_positions:
        raise CompileError(f"context={context}: the model has 2 to {architecture.max_positions} positions")
    if chunk < 1 or sequences < 1:
        raise CompileError(f"chunk={chunk} and sequences={sequences} have to be at least 1")
    if not 0 <= checked_int("proposals", proposals) < context:
        raise CompileError(f"proposals={proposals} are not 0 to {context - 1}, which the context holds")
    chunk = min(chunk, context)
    pages = None if cache_positions is None else _page_count(cache_positions, sequences)
    length = Dim("length", 1, chunk, typical=min(TYPICAL_PROMPT, chunk))
    piece = chunk if boolean("fixed_chunk", fixed_chunk, CompileError) else length
    if fixed_chunk and pages is not None:
        raise CompileError(
            "fixed_chunk pads pieces of prompts, for which pages (cache_positions) have no room"
        )
    targets = target_names(devices)
    skipping = _on_cpus({WHOLE: targets})
    options = DecoderOptions(
        context,
        length,
        sequences,
        _element_type("dtype", dtype, FLOATS),
        _element_type("cache_dtype", cache_dtype, CACHE_TYPES),
        unpack=quantisation is not None and not stored,
        pages=pages,
        heads_first=WHOLE in skipping,
    )
    placing = _placement(placement, memory)
    info: dict[str, str] = {}
    if expert_device is not None:
        architecture, placing, info, other = _experts_apart(
            architecture,
            build_decoder(checkpoint, architecture, dataclasses.replace(options, role="decode", length=1)),
            placing,
            targets,
            expert_device,
            None if expert_counts is None else read_counts(expert_counts, architecture),
            quantisation,
        )
        skipping = _on_cpus({APART: (expert_device,), OTHERS: (other,)})
    options = dataclasses.replace(options, skip_empty_groups=skipping)

    def graph(**changes: Any) -> Any:
        return build_decoder(checkpoint, architecture, dataclasses.replace(options, **changes))

    graphs = {
        "": graph(role="logits", all_logits=True),
        "prefill": graph(role="prefill", length=piece),
        "decode": graph(role="decode", length=1),
        UNRESTRICTED: graph(role="decode", length=1, restricted=False),
    }
    if logprobs:
        graphs["prefill_scored"] = graph(role="prefill", length=piece, scored=True)
        graphs["decode_scored"] = graph(role="decode", length=1, scored=True)
    if proposals:
        window = Dim("window", 1, proposals + 1, typical=min(TYPICAL_WINDOW, proposals + 1))
        graphs["verify"] = graph(role="verify", length=window)
    if sequences > 1 and architecture.rewinds and pages is None:
        rows = Dim("rows", 1, context, typical=min(TYPICAL_PROMPT, context))
        graphs["copy_prefix"] = build_prefix_copy(caches(graphs["decode"], context), sequences, rows)
    compiled = compiler.compile_methods(
        graphs,
        compiler.CompileOptions(
            targets=targets,
            placement=placing,
            quantisation=quantisation,
            cache=cache,
            progress=progress,
        ),
        _uses(graphs, method_devices or {}, fixed=fixed_chunk),
    )
    description = Description(
        architecture.family,
        architecture.vocabulary,
        context,
        chunk,
        sequences,
        _end_tokens(checkpoint.config),
        architecture.rewinds,
        proposals,
        pages or 0,
        PAGE if pages else 0,
        _stored_types(checkpoint, graphs[""]),
    )
    plan = dataclasses.replace(compiled.plan, info={**compiled.plan.info, **description.to_info(), **info})
    return model_of(dataclasses.replace(compiled, plan=plan))


def compile_routing(path: str | os.PathLike[str], devices: Sequence[str], context: int, chunk: int) -> Model:
    """Compile a checkpoint to a model that gives the experts which tokens choose (the role ``routing`` of
    `build_decoder`). Raises as `compile_language_model`, and CompileError for a model without experts."""
    from mansard import compiler
    from mansard.frontends.decoders.checkpoint import open_checkpoint
    from mansard.frontends.decoders.decoder import DecoderOptions, build_decoder
    from mansard.frontends.decoders.families import describe

    checkpoint = open_checkpoint(path)
    architecture = describe(checkpoint.config)
    expert_count(architecture)
    length = Dim("length", 1, chunk, typical=min(TYPICAL_PROMPT, chunk))
    options = DecoderOptions(context, length, role="routing")
    graph = build_decoder(checkpoint, architecture, options)
    return model_of(compiler.compile_graph(graph, compiler.CompileOptions(targets=tuple(devices))))


def routed_experts(path: str | os.PathLike[str]) -> int:
    """Experts of each layer of a checkpoint. Raises as `compile_routing`."""
    from mansard.frontends.decoders.checkpoint import open_checkpoint
    from mansard.frontends.decoders.families import describe

    return expert_count(describe(open_checkpoint(path).config))


def _experts_apart(
    architecture: Architecture,
    graph: Graph,
    placement: PlacementOptions,
    targets: Sequence[str],
    device: str,
    counts: Counts | None,
    quantisation: Quantisation | None,
) -> tuple[Architecture, PlacementOptions, dict[str, str], str]:
    """The architecture with the experts apart that ``device`` has memory for, placement with these pinned
    to it and the others to the last of the other devices, an entry for the plan's info, and that device."""
    from mansard.compiler.targets import resolve_targets

    slots = {target.name: target.slot for target in resolve_targets(targets, placement)}
    if device not in slots or len(slots) < 2:
        raise InputError(
            f"expert_device={device!r}: experts are divided between it and another device, and the devices "
            f"are {', '.join(slots)}"
        )
    limit = dict(placement.memory).get(device, slots[device].memory)
    if limit is None:
        raise InputError(f"expert_device={device!r} needs a limit: memory={{{device!r}: '2GB'}}")
    architecture, chosen = place_experts(architecture, graph, device, limit, counts, quantisation)
    other = [name for name in slots if name != device][-1]
    pins = (("*.experts.apart", device), ("*.experts.others", other))
    pinned = dataclasses.replace(placement, pins=(*placement.pins, *pins))
    return architecture, pinned, chosen.to_info(), other


def _on_cpus(parts: Mapping[str, Sequence[str]]) -> frozenset[str]:
    """The parts that have CPUs alone."""
    return frozenset(
        part
        for part, devices in parts.items()
        if all(device.partition(":")[0] == HOST_DEVICE for device in devices)
    )


def trained_positions(path: str | os.PathLike[str]) -> int:
    """The positions that a checkpoint's model was trained on. Raises ImportModelError."""
    from mansard.frontends.decoders.checkpoint import open_checkpoint
    from mansard.frontends.decoders.families import describe

    return describe(open_checkpoint(path).config).max_positions


def _placement(
    placement: PlacementOptions | None, memory: Mapping[str, int | str] | None
) -> PlacementOptions:
    """The options with limits of ``memory`` added."""
    from mansard.placement import PlacementOptions

    placement = placement or PlacementOptions()
    if memory is None:
        return placement
    limits = dict(placement.memory) | dict(PlacementOptions(memory=memory).memory)  # type: ignore[arg-type]
    return dataclasses.replace(placement, memory=tuple(limits.items()))


def _uses(
    graphs: Mapping[str, Any], devices: Mapping[str, str], *, fixed: bool = False
) -> dict[str, MethodUse]:
    """How often a typical text calls each method, and where it is to run. Where prefills are ``fixed``, the
    plain call, which takes any length, runs where decoding does."""
    from mansard.placement.methods import MethodUse

    if unknown := set(devices) - {"prefill", "decode"}:
        raise InputError(
            f"method_devices names {', '.join(map(repr, sorted(unknown)))}; the methods are 'prefill' and "
            "'decode'"
        )
    calls = {"prefill": 1.0, "decode": float(TYPICAL_ANSWER)}
    alike = ("verify", "") if fixed else ("verify",)
    return {
        name: MethodUse(
            calls.get(name, 0.0),
            devices.get(name),
            "decode" if name in alike or name.startswith("decode") else "prefill",
        )
        for name in graphs
    }


def _page_count(positions: int, sequences: int) -> int:
    """Pages for so many positions of all sequences, and the one that nobody reads."""
    from mansard.frontends.decoders.layers.pages import PAGE

    if checked_int("cache_positions", positions) < PAGE:
        raise CompileError(f"cache_positions={positions}: a page has {PAGE} positions")
    if sequences < 2:
        raise CompileError(
            "cache_positions are shared by several texts (sequences=…); the cache of one has as many as "
            "context says"
        )
    return -(-positions // PAGE) + 1


def _stored_types(checkpoint: Checkpoint, graph: Graph) -> dict[str, str]:
    """What became of the weights that a checkpoint has not as floating point, by their type in the file."""
    kept, unpacked = Counter[str](), dict[str, Counter[str]]()
    for value, constant in graph.constants.items():
        name, _, part = constant.key.rpartition(".")
        if part == "values" and name in checkpoint.names:
            kept[checkpoint.stored_type(name) or ""] += 1
        elif constant.key in checkpoint.names and (kind := checkpoint.stored_type(constant.key)):
            unpacked.setdefault(kind, Counter())[value.type.dtype.value] += 1
    texts = {kind: [f"{count} as stored"] for kind, count in kept.items()}
    for kind, counts in unpacked.items():
        texts.setdefault(kind, []).extend(f"{count} unpacked to {name}" for name, count in counts.items())
    return {kind: ", ".join(parts) for kind, parts in sorted(texts.items())}


def _element_type(what: str, name: str | None, known: Mapping[str, DType]) -> DType | None:
    if name is None:
        return None
    if name not in known:
        raise InputError(f"{what}={name!r} is not {', '.join(list(known)[:-1])} or {list(known)[-1]}")
    return known[name]


def _end_tokens(config: Any) -> tuple[int, ...]:
    ends = config.get("eos_token_id")
    return tuple(ends) if isinstance(ends, list) else () if ends is None else (int(ends),)
