"""`mansard.quantize`: how weights are stored, or a float model with calibration data on integers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from mansard.arguments import boolean, texts
from mansard.errors import CompileError
from mansard.quantisation.model import QuantizedModel

if TYPE_CHECKING:
    from mansard.passes.products.quantisation import Quantisation

_UNSET: Any = object()


@overload
def quantize(
    model: str,
    *,
    group_size: int | None = ...,
    symmetric: bool = ...,
    activations: str | None = ...,
    min_elements: int = ...,
    tables: bool = ...,
    keep: Sequence[str] = ...,
) -> Quantisation: ...
@overload
def quantize(
    model: Any,
    calibration_data: Any,
    scheme: str = ...,
    *,
    ranges: str = ...,
    keep: Sequence[str] = ...,
    attention: bool = ...,
    signed: bool = ...,
    wide: str = ...,
    budget: float = ...,
    target_error: float | None = ...,
    smoothing: float | None = ...,
    example_inputs: Any = ...,
    cache: bool = ...,
    progress: Callable[[str, int, int], None] | None = ...,
    **frontend: Any,
) -> QuantizedModel: ...
def quantize(
    model: Any,
    calibration_data: Any = None,
    scheme: str = "int8",
    *,
    ranges: str = "mse",
    attention: bool = False,
    signed: bool = False,
    wide: str = "int16",
    budget: float = 0.1,
    target_error: float | None = None,
    smoothing: float | None = None,
    example_inputs: Any = None,
    cache: bool = True,
    progress: Callable[[str, int, int], None] | None = None,
    keep: Sequence[str] = (),
    group_size: int | None = None,
    symmetric: bool = True,
    activations: str | None = None,
    min_elements: int = 1 << 14,
    tables: bool = False,
    **frontend: Any,
) -> Quantisation | QuantizedModel:
    """A float model of any framework on integers, with ranges from calibration data; or, for ``"int8"``,
    ``"int4"``, ``"float12"`` and ``"stored"`` without data, how `compile` stores the weights of products
    (``quantize=``).

    **With calibration data** the result goes into `compile` for any target, and its ``report`` says what that
    cost. The data is an iterable of calls (a tensor, a tuple of inputs, a dict by name), or a dict of arrays
    by input name with all samples along the first axis; 8 to 32 samples like those to come will do.
    ``model``, ``example_inputs`` and further keywords (``dynamic_shapes``, ``dims`` …) are those of
    `compile`; a module is traced with the first call unless there are example inputs.

    Weights get 8 bits and a scale for each output channel, inputs of products a scale and a zero point.

    - ``scheme="int8"``: results of products with their bias and clamp, and additions, multiplications,
      averages and concatenations between them, are 8-bit integers too, as NPUs take them.
    - ``"int8-products"``: only what products multiply; the rest stays f32, which is closer to the model.
    - ``"int16"``: 16-bit values, 8-bit weights.
    - ``"mixed"``: int8, except for layers whose quantisation alone changes the outputs most: they are
      ``wide`` (``"int16"`` or ``"float"``), up to the part ``budget`` of all multiply-adds, until the errors
      of the others are below ``target_error`` (relative, of the outputs).

    ``smoothing`` (0 to 1) moves scales of channels from values around norms into the constants beside them,
    before ranges are chosen: for transformers, whose norms read a few channels much larger than the others.

    ``ranges``: ``"minmax"``, ``"percentile"`` or ``"mse"``. Layers whose names match a pattern of ``keep``
    stay float. ``attention`` quantises products of computed values, too, around zero. ``signed`` gives
    codes of values the type i8 instead of u8. ``progress(stage, done, total)`` is called as work proceeds.

    **Weights only**: ``group_size`` elements of a row (of one output) share a scale: by default 32 for int4
    and all for int8; 0 means all. Where it does not divide the rows, a part of it does, or the last group is
    padded. Codes are ``symmetric`` around zero or have zero points. With ``activations="int8"`` what weights
    are multiplied with is rounded to 8 bits in the same groups, at each call. ``"float12"`` has none of
    these: it stores bf16 weights without loss, as floats of 12 bits with a power of two for each row, and
    the few that those are not in full (docs/compiling.md). ``"stored"`` is for models that have weights of
    small integers already (GGUF files, ONNX models): they stay, and ``activations="int8"`` is for these.
    Weights of fewer than ``min_elements``, and those whose key matches ``keep``, stay as they are.
    ``tables`` quantises tables that are only looked up, too.

    Raises CompileError for options out of range and models without products to quantise, InputError for
    data that does not fit the model.
    """
    if isinstance(model, str) and calibration_data is None and "\n" not in model and not Path(model).suffix:
        from mansard.passes.products.quantisation import quantisation

        return quantisation(
            model,
            group_size=group_size,
            symmetric=boolean("symmetric", symmetric, CompileError),
            activations=activations,
            min_elements=min_elements,
            tables=boolean("tables", tables, CompileError),
            keep=texts("keep", keep, CompileError, "*lm_head*"),
        )
    refining = (group_size, symmetric, activations, min_elements, tables)
    if refining != (None, True, None, 1 << 14, False):
        raise CompileError(
            "group_size, symmetric, activations, min_elements and tables refine quantize('int8'), "
            "quantize('int4'), quantize('float12') and quantize('stored'), all without calibration data"
        )
    from mansard.quantisation.options import static_options

    options = static_options(scheme, ranges, keep, attention, signed, wide, budget, target_error, smoothing)
    return _calibrated(model, calibration_data, options, example_inputs, cache, progress, frontend)


def _calibrated(
    model: Any,
    data: Any,
    options: Any,
    example_inputs: Any,
    cache: bool,
    progress: Callable[[str, int, int], None] | None,
    frontend: Mapping[str, Any],
) -> QuantizedModel:
    from mansard.frontends import import_model
    from mansard.frontends.registry import chosen_frontend
    from mansard.quantisation.calibration import calls
    from mansard.quantisation.quantiser import quantise_graph

    given = {name: value for name, value in frontend.items() if value is not None}
    given |= given.pop("frontend_options", {})
    if not isinstance(data, Mapping):
        first = list(itertools.islice(items := calls(data), 1))
        data = itertools.chain(first, items)
        if example_inputs is None and "kwargs" not in given and first:
            reader = chosen_frontend(model, given.get("frontend"))
            example_inputs = first[0] if reader.traces(model) else None
    if progress is not None:
        progress("import", 0, 1)
    graph = import_model(model, example_inputs, cache=cache, **given)
    return QuantizedModel(*quantise_graph(graph, data, options, progress))
