"""Plan to JSON and back.

The coding follows the type annotations of `plan`: dataclasses become objects, tuples arrays, dims
their text (`str`, read back by `dims.parse`), element types their short name. Steps carry a ``step``
tag. An artifact keeps executables beside the plan, with the code that they describe
(`executables_to_json`): the plan then names them by their numbers. A field's former name, in its metadata
as ``formerly``, is read as the field. Nothing but the dataclasses of the plan can be built from the JSON.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mansard import dims
from mansard.dims import Dim, DimLike, Expr
from mansard.dtypes import DType
from mansard.errors import ArtifactError, MansardError
from mansard.plan import interface as interface_module
from mansard.plan import plan as plan_module
from mansard.plan.plan import (
    BarrierStep,
    DispatchStep,
    EvictStep,
    ExecutableRef,
    LoadStep,
    Plan,
    TransferStep,
)

_STEPS: dict[str, type] = {
    "dispatch": DispatchStep,
    "transfer": TransferStep,
    "barrier": BarrierStep,
    "load": LoadStep,
    "evict": EvictStep,
}
_STEP_NAMES = {cls: name for name, cls in _STEPS.items()}
_NAMESPACE = {**vars(interface_module), **vars(plan_module), "Expr": Expr}


def plan_to_json(plan: Plan, executables: Sequence[ExecutableRef] | None = None) -> str:
    """The plan as compact JSON; equal plans give equal text. With ``executables``, all that the plan has
    (`executables_of`), it names them by their places there instead of spelling them out."""
    data = _encode(plan)
    if executables is not None:
        number_of = {ref: number for number, ref in enumerate(executables)}
        methods = data["methods"].values()
        records = [record for first in (data, *methods) for record in (first, *first["variants"])]
        for each, record in zip(plan.all_plans(), records, strict=True):
            for device, program in zip(each.devices, record["devices"], strict=True):
                program["executables"] = [number_of[ref] for ref in device.executables]
    return json.dumps(data, separators=(",", ":"), allow_nan=False)


def plan_from_json(text: str | bytes, executables: Sequence[ExecutableRef] | None = None) -> Plan:
    """Read back `plan_to_json` with the same ``executables``; raises ArtifactError for anything else."""

    def decode(data: Any) -> Any:
        return _decoder(Plan)(data, _Context(_symbols(data), executables))

    decoded = _read(text, "plan", decode)
    assert isinstance(decoded, Plan)
    return decoded


def executables_of(plan: Plan) -> tuple[ExecutableRef, ...]:
    """The executables of a plan, its variants and methods, each once."""
    devices = (device for p in plan.all_plans() for device in p.devices)
    return tuple(dict.fromkeys(ref for device in devices for ref in device.executables))


def executables_to_json(plan: Plan) -> str:
    """The executables of a plan (`executables_of`) as compact JSON, with the dims of their contracts."""
    symbols = dict.fromkeys(dim for p in plan.all_plans() for dim in p.dims)
    data = {"dims": _encode(tuple(symbols)), "executables": _encode(executables_of(plan))}
    return json.dumps(data, separators=(",", ":"))


def executables_from_json(text: str | bytes) -> tuple[ExecutableRef, ...]:
    """Read back `executables_to_json`; raises ArtifactError for anything else, and for an executable whose
    kernels do not have a contract each."""

    def decode(data: Any) -> Any:
        refs = _decoder(tuple[ExecutableRef, ...])(data["executables"], _Context(_symbols(data)))
        for ref in refs:
            if len(ref.contracts) != len(ref.kernels):
                raise ArtifactError(
                    f"executable {ref.entry!r} has {len(ref.contracts)} contracts for "
                    f"{len(ref.kernels)} kernels"
                )
        return refs

    decoded = _read(text, "list of executables", decode)
    assert isinstance(decoded, tuple)
    return decoded


def _read(text: str | bytes, what: str, decode: Callable[[Any], Any]) -> Any:
    try:
        data = json.loads(text)
        if not isinstance(data, dict):
            raise ArtifactError(f"the {what} is not a JSON object")
        return decode(data)
    except ArtifactError:
        raise
    except MansardError as error:  # of a dim whose contract is none
        raise ArtifactError(f"the {what} cannot be read: {error}") from error
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError, MemoryError) as error:
        problem = f"{type(error).__name__} {str(error)[:200]}"
        raise ArtifactError(f"the {what} cannot be read: {problem}") from error


def _symbols(data: Mapping[str, Any]) -> dict[str, Dim]:
    methods = data.get("methods", {})
    records = [data, *(methods.values() if isinstance(methods, dict) else ())]
    if not all(isinstance(record, dict) for record in records):
        raise ArtifactError("a method of the plan is not a JSON object")
    symbols: dict[str, Dim] = {}
    for record in records:
        for dim in _decoder(tuple[Dim, ...])(record.get("dims", []), _Context({})):
            if symbols.setdefault(dim.name, dim) != dim:
                raise ArtifactError(f"the methods of the plan have different dims {dim.name!r}")
    return symbols


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


@dataclasses.dataclass
class _Context:
    """What is being read: its symbols, the executables that are named by number, and dims by their text."""

    symbols: Mapping[str, Dim]
    executables: Sequence[ExecutableRef] | None = None
    dims: dict[str, DimLike] = dataclasses.field(default_factory=dict)


Decoder = Callable[[Any, _Context], Any]
"""From JSON data and its context to the value of one annotation; raises ArtifactError."""


@functools.cache
def _decoder(hint: Any) -> Decoder:
    """The decoder of an annotation. Made once: a plan has thousands of values of few kinds."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is ExecutableRef:
        return _executable
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
        return lambda data, context: DType(data)
    return _plain(hint)


def _mismatch(data: Any, wanted: object) -> ArtifactError:
    text = repr(data) if isinstance(data, (str, float, bool, type(None))) else f"a {type(data).__name__}"
    return ArtifactError(f"the plan has {text[:80]} where {wanted} belongs")


_INT_LIMIT = 1 << 63
"""Sizes, offsets and parameters of kernels are 64-bit integers."""


def _plain(hint: Any) -> Decoder:
    def decode(data: Any, context: _Context) -> Any:
        if type(data) is hint:
            return data
        raise _mismatch(data, hint)

    return decode


def _integer(data: Any, context: _Context) -> Any:
    if type(data) is int and -_INT_LIMIT <= data < _INT_LIMIT:
        return data
    raise _mismatch(data, "a 64-bit integer")


def _text(data: Any, context: _Context) -> Any:
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

    def decode(data: Any, context: _Context) -> Any:
        if not isinstance(data, dict):
            raise _mismatch(data, f"a {cls.__name__}")
        if not decoders:
            decoders.update({name: _decoder(hint) for name, hint in hints.items()})
        if former:
            data = {former.get(key, key): item for key, item in data.items()}
        try:
            return cls(**{key: decoders[key](item, context) for key, item in data.items() if key != "step"})
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

    def decode(data: Any, context: _Context) -> Any:
        if not isinstance(data, list):
            raise _mismatch(data, "an array")
        return tuple([decode_item(item, context) for item in data])

    return decode


def _tuple(args: tuple[Any, ...]) -> Decoder:
    decoders = [_decoder(arg) for arg in args]

    def decode(data: Any, context: _Context) -> Any:
        if not isinstance(data, list):
            raise _mismatch(data, "an array")
        if len(data) != len(decoders):
            raise ArtifactError(f"the plan has {len(data)} items where {len(decoders)} belong")
        return tuple([each(item, context) for each, item in zip(decoders, data, strict=True)])

    return decode


def _mapping(hint: Any) -> Decoder:
    decode_item = _decoder(hint)

    def decode(data: Any, context: _Context) -> Any:
        if not isinstance(data, dict):
            raise _mismatch(data, "an object")
        return {_text(key, context): decode_item(item, context) for key, item in data.items()}

    return decode


def _union(args: tuple[Any, ...]) -> Decoder:
    if Expr in args:
        return _dim
    if DispatchStep in args:
        return _step
    rest = next(arg for arg in args if arg not in (float, type(None)))
    decode_rest, optional, number = _decoder(rest), type(None) in args, float in args

    def decode(data: Any, context: _Context) -> Any:
        if data is None and optional:
            return None
        if number and type(data) in (int, float):
            return float(data)
        return decode_rest(data, context)

    return decode


def _dim(data: Any, context: _Context) -> Any:
    if type(data) is int:
        return _integer(data, context)
    if type(data) is str:
        if data not in context.dims:
            context.dims[data] = dims.parse(data, context.symbols)
        value = context.dims[data]
        return _integer(value, context) if isinstance(value, int) else value
    raise _mismatch(data, "a dim")


@functools.cache
def _executable_record() -> Decoder:
    return _record(ExecutableRef)


def _executable(data: Any, context: _Context) -> Any:
    if context.executables is None:
        return _executable_record()(data, context)
    if type(data) is not int:
        raise _mismatch(data, "the number of an executable")
    if not 0 <= data < len(context.executables):
        raise ArtifactError(f"the plan names executable {data}; the artifact has {len(context.executables)}")
    return context.executables[data]


def _step(data: Any, context: _Context) -> Any:
    tag = data.get("step") if isinstance(data, dict) else None
    if not isinstance(tag, str) or tag not in _STEPS:
        raise _mismatch(tag, f"one of the steps {', '.join(_STEPS)}")
    return _decoder(_STEPS[tag])(data, context)
