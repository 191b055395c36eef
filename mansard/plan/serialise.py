"""Plan to JSON and back.

The coding follows the type annotations of `plan`: dataclasses become objects, tuples arrays, dims
their text (`str`, read back by `dims.parse`), element types their short name. Steps carry a ``step``
tag. A field's former name, in its metadata as ``formerly``, is read as the field. Nothing but the
dataclasses of the plan can be built from the JSON.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from mansard import dims
from mansard.dims import Dim, Expr
from mansard.dtypes import DType
from mansard.errors import ArtifactError, MansardError
from mansard.plan import plan as plan_module
from mansard.plan.plan import BarrierStep, DispatchStep, Plan, TransferStep

_STEPS: dict[str, type] = {"dispatch": DispatchStep, "transfer": TransferStep, "barrier": BarrierStep}
_STEP_NAMES = {cls: name for name, cls in _STEPS.items()}
_NAMESPACE = {**vars(plan_module), "Expr": Expr}


def plan_to_json(plan: Plan) -> str:
    """The plan as compact JSON; equal plans give equal text."""
    return json.dumps(_encode(plan), separators=(",", ":"), allow_nan=False)


def plan_from_json(text: str | bytes) -> Plan:
    """Read back `plan_to_json`; raises ArtifactError for anything else."""
    try:
        data = json.loads(text)
        if not isinstance(data, dict):
            raise ArtifactError("the plan is not a JSON object")
        symbols = {d.name: d for d in (_decoder(Dim)(item, {}) for item in data.get("dims", ()))}
        decoded = _decoder(Plan)(data, symbols)
    except ArtifactError:
        raise
    except MansardError as error:  # of a dim whose contract is none
        raise ArtifactError(f"the plan cannot be read: {error}") from error
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError, MemoryError) as error:
        raise ArtifactError(f"the plan cannot be read: {type(error).__name__} {str(error)[:200]}") from error
    if not isinstance(decoded, Plan):  # pragma: no cover  # it builds a Plan or raises
        raise ArtifactError("the plan cannot be read")
    return decoded


def _encode(value: Any) -> Any:
    if isinstance(value, Expr):
        return str(value)
    if isinstance(value, DType):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # only Decision.costs holds floats, and reads texts too
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        tag = _STEP_NAMES.get(type(value))
        record: dict[str, Any] = {} if tag is None else {"step": tag}
        for field in dataclasses.fields(value):
            record[field.name] = _encode(getattr(value, field.name))
        return record
    if isinstance(value, (tuple, list)):
        return [_encode(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _encode(item) for key, item in value.items()}
    return value


# Reading ------------------------------------------------------------------------------------------

Symbols = Mapping[str, Dim]
Decoder = Callable[[Any, Symbols], Any]
"""From JSON data and the plan's symbols to the value of one annotation; raises ArtifactError."""


@functools.cache
def _decoder(hint: Any) -> Decoder:
    """The decoder of an annotation. Made once: a plan has thousands of values of few kinds."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _record(hint)
    if origin is tuple:
        return _items(args[0]) if len(args) == 2 and args[1] is Ellipsis else _tuple(args)
    if origin in (typing.Union, types.UnionType):
        return _union(args)
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(args[1])
    if hint is int:
        return _integer
    if hint is str:
        return _text
    if hint is DType:
        return lambda data, symbols: DType(data)
    return _plain(hint)


def _mismatch(data: Any, wanted: object) -> ArtifactError:
    text = repr(data) if isinstance(data, (str, float, bool, type(None))) else f"a {type(data).__name__}"
    return ArtifactError(f"the plan has {text[:80]} where {wanted} belongs")


_INT_LIMIT = 1 << 63
"""Sizes, offsets and parameters of kernels are 64-bit integers."""


def _plain(hint: Any) -> Decoder:
    def decode(data: Any, symbols: Symbols) -> Any:
        if type(data) is hint:
            return data
        raise _mismatch(data, hint)

    return decode


def _integer(data: Any, symbols: Symbols) -> Any:
    if type(data) is int and -_INT_LIMIT <= data < _INT_LIMIT:
        return data
    raise _mismatch(data, "a 64-bit integer")


def _text(data: Any, symbols: Symbols) -> Any:
    if type(data) is not str:
        raise _mismatch(data, "a text")
    if not data.isascii():
        data.encode()  # a lone surrogate cannot be printed: ValueError
    return data


def _record(cls: type) -> Decoder:
    hints = typing.get_type_hints(cls, globalns=_NAMESPACE)
    # Annotations may lead back to the class: decoders of fields are made when first needed.
    decoders: dict[str, Decoder] = {}
    former = {f.metadata["formerly"]: f.name for f in dataclasses.fields(cls) if "formerly" in f.metadata}

    def decode(data: Any, symbols: Symbols) -> Any:
        if not isinstance(data, dict):
            raise _mismatch(data, f"a {cls.__name__}")
        if not decoders:
            decoders.update({name: _decoder(hint) for name, hint in hints.items()})
        if former:
            data = {former.get(key, key): item for key, item in data.items()}
        try:
            return cls(**{key: decoders[key](item, symbols) for key, item in data.items() if key != "step"})
        except KeyError:
            unknown = data.keys() - hints.keys() - {"step"}
            if not unknown:
                raise
        raise ArtifactError(
            f"the plan's {cls.__name__} has unknown fields: {', '.join(sorted(unknown))[:200]}"
        ) from None

    return decode


def _items(hint: Any) -> Decoder:
    decode_item = _decoder(hint)

    def decode(data: Any, symbols: Symbols) -> Any:
        if not isinstance(data, list):
            raise _mismatch(data, "an array")
        return tuple([decode_item(item, symbols) for item in data])

    return decode


def _tuple(args: tuple[Any, ...]) -> Decoder:
    decoders = [_decoder(arg) for arg in args]

    def decode(data: Any, symbols: Symbols) -> Any:
        if not isinstance(data, list):
            raise _mismatch(data, "an array")
        if len(data) != len(decoders):
            raise ArtifactError(f"the plan has {len(data)} items where {len(decoders)} belong")
        return tuple([each(item, symbols) for each, item in zip(decoders, data, strict=True)])

    return decode


def _mapping(hint: Any) -> Decoder:
    decode_item = _decoder(hint)

    def decode(data: Any, symbols: Symbols) -> Any:
        if not isinstance(data, dict):
            raise _mismatch(data, "an object")
        return {_text(key, symbols): decode_item(item, symbols) for key, item in data.items()}

    return decode


def _union(args: tuple[Any, ...]) -> Decoder:
    if Expr in args:
        return _dim
    if DispatchStep in args:
        return _step
    rest = next(arg for arg in args if arg not in (float, type(None)))
    decode_rest, optional, number = _decoder(rest), type(None) in args, float in args

    def decode(data: Any, symbols: Symbols) -> Any:
        if data is None and optional:
            return None
        if number and type(data) in (int, float):
            return float(data)
        return decode_rest(data, symbols)

    return decode


def _dim(data: Any, symbols: Symbols) -> Any:
    if type(data) is int:
        return _integer(data, symbols)
    if type(data) is str:
        value = dims.parse(data, symbols)
        return _integer(value, symbols) if isinstance(value, int) else value
    raise _mismatch(data, "a dim")


def _step(data: Any, symbols: Symbols) -> Any:
    tag = data.get("step") if isinstance(data, dict) else None
    if not isinstance(tag, str) or tag not in _STEPS:
        raise _mismatch(tag, f"one of the steps {', '.join(_STEPS)}")
    return _decoder(_STEPS[tag])(data, symbols)
