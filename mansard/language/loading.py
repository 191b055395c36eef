"""`mansard.load_lm`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from mansard.api.loading import load
from mansard.api.model import Model
from mansard.arguments import shown
from mansard.artifact.resources import Verify
from mansard.artifact.signing import Key
from mansard.errors import InputError
from mansard.language.cache_size import check_cache_size
from mansard.language.compilation import CHUNK, PROPOSALS, compile_language_model, trained_positions
from mansard.language.description import Description
from mansard.language.language_model import LanguageModel
from mansard.language.methods import gives_scores
from mansard.language.speculation.opening import LOOKUP
from mansard.language.tokenizer import Tokenizer, find_tokenizer, load_tokenizer

if TYPE_CHECKING:
    import numpy.typing as npt

    from mansard.passes.products.quantisation import Quantisation
    from mansard.placement import PlacementOptions


class _Checks(TypedDict, total=False):
    """What `mansard.load` checks of an artifact, and whether it reads all of it first."""

    verify: Verify | None
    copy: bool
    trusted_keys: Sequence[Key] | None


def load_lm(
    path: str | os.PathLike[str],
    *,
    devices: str | Sequence[str] | None = None,
    context: int | None = None,
    chunk: int | None = None,
    fixed_chunk: bool = False,
    sequences: int | None = None,
    cache_positions: int | None = None,
    dtype: str | None = None,
    cache_dtype: str | None = None,
    quantize: str | Quantisation | None = None,
    memory: Mapping[str, int | str] | None = None,
    method_devices: Mapping[str, str] | None = None,
    placement: PlacementOptions | None = None,
    expert_device: str | None = None,
    expert_counts: str | os.PathLike[str] | npt.ArrayLike | None = None,
    tokenizer: str | os.PathLike[str] | Tokenizer | None = None,
    logprobs: bool = False,
    draft: str | os.PathLike[str] | LanguageModel | None = None,
    draft_devices: str | Sequence[str] | None = None,
    proposals: int | None = None,
    verify: Verify | None = None,
    copy: bool = False,
    trusted_keys: Sequence[Key] | None = None,
    cache: bool = True,
    progress: Callable[[str, int, int], None] | None = None,
) -> LanguageModel:
    """Open a language model: the folder of a Hugging Face checkpoint or a ``.gguf`` file, which are
    compiled, or an artifact that `LanguageModel.save` wrote.

    ``devices`` are those of `mansard.compile`. The cache holds ``context`` positions (by default 4096, or
    those the model was trained on if fewer); prompts are read in pieces of up to ``chunk`` tokens (512), with
    ``fixed_chunk`` in pieces of just so many (padded, for NPUs that take fixed shapes). Up to
    ``sequences`` texts (1) are generated at a time, each with a cache of its own; or all share
    ``cache_positions`` positions, of which each takes pages of 128 as it grows, and texts that begin equally
    have these pages in common (docs/language-models.md). ``dtype`` and ``cache_dtype`` (f32, f16, bf16; the
    latter also int8, with a scale for each position and head) are the types of activations and of the cache,
    by default that of the weights. ``tokenizer`` names a folder or file with one; by default that of
    ``path`` is used, which an artifact has with it, and a model without one works on token numbers.
    ``logprobs`` compiles a model that gives the log-probabilities of tokens to those who ask for them.

    ``draft`` proposes tokens of which the model verifies up to ``proposals`` (7) in one call
    (`LanguageModel.generate`): ``"ngram"`` (what followed the same words before), or a smaller model of the
    same vocabulary, as a path or opened already; one that is named is opened for ``draft_devices``, by
    default those of the model.

    Over several devices layers are placed by predicted time (docs/language-models.md). ``memory`` limits
    what a device holds for the model, in bytes or as ``"1.5GB"``: ``{"vulkan": "1GB"}``. ``method_devices``
    says where a method runs, as far as that device is able to: ``{"prefill": "vulkan", "decode": "cpu"}``.
    ``placement`` has the other options of `mansard.compile`. ``expert_device`` has as many experts of each
    layer as its memory holds, those that ``expert_counts`` says are chosen most (of
    `LanguageModel.expert_counts`, or a file of `numpy.save`); another device computes the rest at the same
    time.

    An artifact is as it was compiled: ``context``, ``chunk``, ``sequences``, ``proposals`` and ``logprobs``
    are what it has. Another value for one of these is an InputError, and so is any other option that says
    how a checkpoint is compiled. ``verify``, ``copy`` and ``trusted_keys`` are those of `mansard.load`, for
    artifacts (a draft that is one, too) and nothing else.

    Raises ImportModelError for a checkpoint that cannot be read or whose architecture is not known,
    ArtifactError for a damaged artifact, SignatureError for one that no trusted key signed, OutOfMemoryError
    for weights or a cache that do not fit a device.
    """
    place = Path(path)
    if not place.exists():
        raise InputError(f"{path} does not exist: load_lm takes a folder, a .gguf file or an artifact")
    if draft is not None and sequences not in (None, 1):
        raise InputError("a draft is for a model of one sequence (sequences=1)")
    checks: _Checks = {"verify": verify, "copy": copy, "trusted_keys": trusted_keys}
    if not is_checkpoint(place):
        compiled = {
            "dtype": dtype, "cache_dtype": cache_dtype, "cache_positions": cache_positions,
            "fixed_chunk": fixed_chunk or None, "quantize": quantize, "memory": memory,
            "method_devices": method_devices, "placement": placement, "expert_device": expert_device,
            "expert_counts": expert_counts,
        }  # fmt: skip
        given = [name for name, value in compiled.items() if value is not None]
        if given:
            raise InputError(
                f"{path} is an artifact, for which all was decided when it was compiled: "
                f"{', '.join(given)}: for checkpoints only"
            )
        wanted = {
            "context": context,
            "chunk": chunk,
            "sequences": sequences,
            "proposals": proposals,
            "logprobs": logprobs or None,
        }
        model = _artifact(place, devices, wanted, checks)
        lm = _with_draft(model, _opened(tokenizer), draft, draft_devices or devices, cache, checks)
        _ = lm.tokenizer  # read now rather than before the first token
        return lm
    if of_artifacts := [name for name, value in checks.items() if value not in (None, False)]:
        raise InputError(f"{path} is a checkpoint: {', '.join(of_artifacts)}: for artifacts only")
    opened = find_tokenizer(place) if tokenizer is None else _opened(tokenizer)
    model = compile_language_model(
        place,
        devices=devices,
        context=context,
        chunk=CHUNK if chunk is None else chunk,
        fixed_chunk=fixed_chunk,
        sequences=1 if sequences is None else sequences,
        cache_positions=cache_positions,
        proposals=0 if draft is None else PROPOSALS if proposals is None else proposals,
        dtype=dtype,
        cache_dtype=cache_dtype,
        quantize=quantize,
        memory=memory,
        method_devices=method_devices,
        placement=placement,
        expert_device=expert_device,
        expert_counts=expert_counts,
        logprobs=logprobs,
        cache=cache,
        progress=progress,
    )
    lm = _with_draft(model, opened, draft, draft_devices or devices, cache)
    lm.checkpoint = place
    return lm


def is_checkpoint(path: Path) -> bool:
    """Whether a path is one of a checkpoint, which is compiled, not of an artifact."""
    return path.is_dir() or path.suffix == ".gguf"


def _artifact(
    path: Path, devices: str | Sequence[str] | None, wanted: Mapping[str, object], checks: _Checks
) -> Model:
    """The model of an artifact; raises InputError where it was compiled with other options than are wanted
    (None: any)."""
    model = load(path, devices, **checks)
    try:
        info = Description.from_info(model.plan.info)
        held = {name: getattr(info, name) for name in ("context", "chunk", "sequences", "proposals")}
        held["logprobs"] = gives_scores(model)
        for name, value in wanted.items():
            if value not in (None, held[name]):
                raise InputError(
                    f"{path} was compiled with {name}={held[name]}, not {value}: leave {name} out, or "
                    "compile the checkpoint again"
                )
    except BaseException:
        model.close()
        raise
    return model


def _with_draft(
    model: Model,
    tokenizer: Tokenizer | None,
    draft: str | os.PathLike[str] | LanguageModel | None,
    devices: str | Sequence[str] | None,
    cache: bool,
    checks: _Checks | None = None,
) -> LanguageModel:
    """The language model, with a draft that is opened for as many positions where it is not yet."""
    check_cache_size(model.plan)
    if draft is None or draft == LOOKUP or isinstance(draft, LanguageModel):
        return LanguageModel(model, tokenizer, draft)
    try:
        opened = _draft(draft, Description.from_info(model.plan.info), devices, cache, checks)
    except BaseException:
        model.close()
        raise
    return LanguageModel(model, tokenizer, opened)


def _draft(
    path: str | os.PathLike[str],
    target: Description,
    devices: str | Sequence[str] | None,
    cache: bool,
    checks: _Checks | None,
) -> LanguageModel:
    place = Path(path)
    if not place.exists():
        raise InputError(f"draft={shown(path)} is neither {LOOKUP!r} nor the path of a language model")
    if not is_checkpoint(place):
        return load_lm(place, devices=devices, cache=cache, **(checks or {}))
    context = min(target.context, trained_positions(place))
    return load_lm(place, devices=devices, context=context, chunk=target.chunk, cache=cache)


def _opened(tokenizer: str | os.PathLike[str] | Tokenizer | None) -> Tokenizer | None:
    return tokenizer if tokenizer is None or isinstance(tokenizer, Tokenizer) else load_tokenizer(tokenizer)
