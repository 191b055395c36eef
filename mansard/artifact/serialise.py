"""Plan to JSON and back.

The coding follows the type annotations of `plan`: dataclasses become objects, tuples arrays, dims
their text (`str`, read back by `dims.parse`), element types their short name. Steps carry a ``step``
tag. Nothing but the dataclasses of the plan can be built from the JSON.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Mapping
from typing import Any

from mansard import dims
from mansard.artifact import plan as plan_module
from mansard.artifact.plan import BarrierStep, DispatchStep, Plan, TransferStep
from mansard.dims import Dim, Expr
from mansard.dtypes import DType
from mansard.errors import ArtifactError

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
        symbols = {d.name: d for d in (_decode(Dim, item, {}) for item in data.get("dims", ()))}
        decoded = _decode(Plan, data, symbols)
    except ArtifactError:
        raise
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ArtifactError(f"the plan cannot be read: {error}") from error
    if not isinstance(decoded, Plan):  # pragma: no cover  # _decode(Plan, ...) builds a Plan or raises
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


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls, globalns=_NAMESPACE)


def _decode(hint: Any, data: Any, symbols: Mapping[str, Dim]) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _decode_record(hint, data, symbols)
    if origin is tuple:
        return _decode_tuple(args, data, symbols)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(args, data, symbols)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(data, dict):
            raise ArtifactError(f"the plan has {data!r} where an object belongs")
        return {key: _decode(args[1], item, symbols) for key, item in data.items()}
    if hint is DType:
        return DType(data)
    if hint in (int, str, bool) and type(data) is hint:
        return data
    raise ArtifactError(f"the plan has {data!r} where {hint} belongs")


def _decode_record(cls: type, data: Any, symbols: Mapping[str, Dim]) -> Any:
    if not isinstance(data, dict):
        raise ArtifactError(f"the plan has {data!r} where a {cls.__name__} belongs")
    hints = _hints(cls)
    unknown = data.keys() - hints.keys() - {"step"}
    if unknown:
        raise ArtifactError(f"the plan's {cls.__name__} has unknown fields: {', '.join(sorted(unknown))}")
    return cls(**{key: _decode(hints[key], item, symbols) for key, item in data.items() if key != "step"})


def _decode_tuple(args: tuple[Any, ...], data: Any, symbols: Mapping[str, Dim]) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise ArtifactError(f"the plan has {data!r} where an array belongs")
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(_decode(args[0], item, symbols) for item in data)
    if len(data) != len(args):
        raise ArtifactError(f"the plan has {len(data)} items where {len(args)} belong")
    return tuple(_decode(arg, item, symbols) for arg, item in zip(args, data, strict=True))


def _decode_union(args: tuple[Any, ...], data: Any, symbols: Mapping[str, Dim]) -> Any:
    if Expr in args:  # DimLike
        if type(data) not in (int, str):
            raise ArtifactError(f"the plan has {data!r} where a dim belongs")
        return dims.parse(data, symbols)
    if DispatchStep in args:
        tag = data.get("step") if isinstance(data, dict) else None
        if tag not in _STEPS:
            raise ArtifactError(f"the plan has an unknown step {tag!r}")
        return _decode_record(_STEPS[tag], data, symbols)
    if data is None and type(None) in args:
        return None
    if float in args and type(data) in (int, float):
        return float(data)
    rest = [arg for arg in args if arg not in (float, type(None))]
    return _decode(rest[0], data, symbols)
