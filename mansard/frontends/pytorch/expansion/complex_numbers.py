"""Complex numbers inside of a program as pairs of real ones, and Fourier transforms as products.

The program is traced again with torch's own tensor class of real and imaginary parts. A transform of n
elements is a product with the n x n matrix of the roots of unity, whatever n is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.complex_tensor import ComplexTensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from mansard.errors import UnsupportedOpError
from mansard.frontends.pytorch.locations import location_of

aten = torch.ops.aten
_MOVES = (
    aten.roll.default, aten.constant_pad_nd.default, aten.unfold.default, aten.reflection_pad1d.default,
    aten.reflection_pad2d.default, aten.replication_pad1d.default, aten.replication_pad2d.default,
)  # fmt: skip
"""Ops that move elements, which torch's class lacks."""
_BINARY = frozenset({"add", "sub", "mul", "div"})
_METADATA = aten._assert_tensor_metadata.default


def has_complex_numbers(program: torch.export.ExportedProgram) -> bool:
    """Whether values inside of a program, or of an op of it, but neither its inputs nor its results, are
    complex."""
    inside = any(node.target in _OF_GRAPHS for node in program.graph.nodes)
    for node in program.graph.nodes:
        operands = node.all_input_nodes if node.op == "output" else [node]
        if any(_is_complex(n.meta.get("val")) for n in operands):
            if node.op in ("placeholder", "output"):
                return False
            inside = True
    return inside


def _is_complex(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_complex()


def in_real_numbers(program: torch.export.ExportedProgram) -> torch.fx.GraphModule:
    """The program's graph in real numbers, with inputs of the same names. Raises UnsupportedOpError."""
    placeholders = [n for n in program.graph.nodes if n.op == "placeholder"]
    values = [n.meta["val"] for n in placeholders]
    mode = next(v.fake_mode for v in values if isinstance(v, FakeTensor))
    interpreter = _InRealNumbers(program.graph_module)

    def run(*inputs: Any) -> Any:
        with _PairsMode():
            return interpreter.run(*inputs)

    with torch.no_grad(), mode, torch.fx.traceback.preserve_node_meta():
        try:
            traced = make_fx(run)(*values)
        except UnsupportedOpError as error:  # without torch's notes
            raise UnsupportedOpError(error.op, error.location, error.detail) from error
    for new, old in zip([n for n in traced.graph.nodes if n.op == "placeholder"], placeholders, strict=True):
        new.name = new.target = old.name
        new.meta = dict(old.meta)
    _write_numbers(traced)
    traced.graph.eliminate_dead_code()
    traced.recompile()
    return traced


def _write_numbers(module: torch.fx.GraphModule) -> None:
    """Tensors of one number that the module holds, as calls: a program holds none outside of its inputs."""
    for node in [n for n in module.graph.nodes if n.op == "get_attr"]:
        held = getattr(module, str(node.target))
        if isinstance(held, torch.Tensor) and held.dim() == 0:
            with module.graph.inserting_before(node):
                number = module.graph.call_function(
                    aten.full.default, ([], held.item()), {"dtype": held.dtype}
                )
            number.meta = dict(node.meta)
            node.replace_all_uses_with(number)
            module.graph.erase_node(node)


class _PairsMode(TorchDispatchMode):  # type: ignore[misc]
    """Complex tensors that ops of torch give are pairs."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The rule of an op, or the op."""
        rule = _RULES.get(function)
        if rule is None and function in _MOVES and isinstance(args[0], ComplexTensor):
            parts = (function(part, *args[1:], **(kwargs or {})) for part in (args[0].re, args[0].im))
            return ComplexTensor(*parts)
        return (function if rule is None else rule)(*args, **(kwargs or {}))


class _InRealNumbers(torch.fx.Interpreter):  # type: ignore[misc]
    """Runs a graph with complex tensors as pairs."""

    def run_node(self, node: Any) -> Any:
        """Run one node; what torch cannot compute on pairs is an error that names it."""
        if node.target is _METADATA:
            return None
        try:
            return super().run_node(node)
        except (NotImplementedError, TypeError, RuntimeError) as error:
            if not any(_is_complex(n.meta.get("val")) for n in (node, *node.all_input_nodes)):
                raise
            name, reason = str(node.target).removesuffix(".default"), str(error).splitlines()[0]
            if "__torch_dispatch__" in reason:
                reason = "this op has no rule for them"
            raise UnsupportedOpError(name, location_of(node), f"of complex numbers: {reason}") from error

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """A call; numbers of Python that are complex are pairs, too."""
        rule = _OF_GRAPHS.get(target)
        if rule is not None:
            return rule(*args, **kwargs)
        leaves, structure = torch.utils._pytree.tree_flatten((args, kwargs))
        pairs = [leaf for leaf in leaves if isinstance(leaf, ComplexTensor)]
        if pairs and _packet(target) in _BINARY:  # torch would make complex tensors of its numbers
            leaves[:2] = [complex(x) if isinstance(x, (int, float)) else x for x in leaves[:2]]
        if any(isinstance(leaf, complex) for leaf in leaves):
            like = next(leaf for leaf in (*pairs, *leaves) if isinstance(leaf, torch.Tensor))
            leaves = [_promoted(leaf, like) for leaf in leaves]
        args, kwargs = torch.utils._pytree.tree_unflatten(leaves, structure)
        return super().call_function(target, args, kwargs)


def _packet(target: Any) -> str:
    return str(getattr(getattr(target, "overloadpacket", None), "__name__", ""))


def _promoted(leaf: Any, like: torch.Tensor) -> Any:
    """A tensor or a complex number as a pair."""
    dtype = like.re.dtype if isinstance(like, ComplexTensor) else like.dtype
    dtype = dtype if dtype.is_floating_point else torch.float32
    if isinstance(leaf, complex):
        return ComplexTensor(*(torch.full((), part, dtype=dtype) for part in (leaf.real, leaf.imag)))
    return _pair(leaf.to(dtype)) if _is_real(leaf) else leaf


def _is_real(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and not isinstance(leaf, ComplexTensor)


def _pair(x: torch.Tensor) -> ComplexTensor:
    return x if isinstance(x, ComplexTensor) else ComplexTensor(x, torch.zeros_like(x))


# Where pairs begin and end ----------------------------------------------------------------------------------
def _complex(real: torch.Tensor, imaginary: torch.Tensor) -> ComplexTensor:
    return ComplexTensor(*torch.broadcast_tensors(real, imaginary))


def _polar(length: torch.Tensor, angle: torch.Tensor) -> ComplexTensor:
    return _complex(length * torch.cos(angle), length * torch.sin(angle))


def _as_complex(x: torch.Tensor) -> ComplexTensor:
    return ComplexTensor(x.select(-1, 0), x.select(-1, 1))


def _as_real(x: ComplexTensor) -> torch.Tensor:
    return torch.stack([x.re, x.im], -1)


_PARTS = {torch.complex64: torch.float32, torch.complex128: torch.float64, torch.complex32: torch.float16}


def _to_type(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A conversion; to real numbers it leaves out imaginary parts."""
    if isinstance(x, ComplexTensor):
        parts = _PARTS.get(dtype)
        return x.re.to(dtype) if parts is None else ComplexTensor(x.re.to(parts), x.im.to(parts))
    return _pair(x.to(_PARTS[dtype])) if dtype in _PARTS else x.to(dtype)


def _copied(x: torch.Tensor, *, dtype: torch.dtype | None = None, **_options: Any) -> torch.Tensor:
    return x.clone() if dtype is None else _to_type(x, dtype)


# Fourier transforms -----------------------------------------------------------------------------------------
def _roots(length: int, count: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of ``2 pi j k / length`` for j below ``length`` and k below ``count``."""
    rows = torch.arange(length, device=like.device).unsqueeze(1)
    columns = torch.arange(count, device=like.device)
    places = rows * columns % length
    angles = places.to(like.dtype) * (2 * math.pi / length)
    # zeros are exact, so that the transform of a real or symmetric line is
    cosines = torch.where(places * 4 % (2 * length) == length, 0.0, torch.cos(angles))
    return cosines, torch.where(places * 2 % length == 0, 0.0, torch.sin(angles))


def _along(x: torch.Tensor, dim: int, matrix: torch.Tensor) -> torch.Tensor:
    return (x.movedim(dim, -1) @ matrix).movedim(-1, dim)


def _scale(normalisation: int, lengths: Sequence[int]) -> float:
    """torch's: none, by the root of the number of elements, by that number."""
    return (1.0, math.prod(lengths) ** -0.5, 1.0 / math.prod(lengths))[normalisation]


def _transformed(x: ComplexTensor, dims: Sequence[int], forward: bool) -> ComplexTensor:
    for dim in dims:
        cosines, sines = _roots(x.re.shape[dim], x.re.shape[dim], x.re)
        sines = sines if forward else -sines
        real = _along(x.re, dim, cosines) + _along(x.im, dim, sines)
        imaginary = _along(x.im, dim, cosines) - _along(x.re, dim, sines)
        x = ComplexTensor(real, imaginary)
    return x


def _c2c(x: torch.Tensor, dims: Sequence[int], normalisation: int, forward: bool) -> ComplexTensor:
    pair = _pair(x)
    scale = _scale(normalisation, [pair.shape[d] for d in dims])
    result = _transformed(pair, dims, forward)
    return ComplexTensor(result.re * scale, result.im * scale)


def _r2c(x: torch.Tensor, dims: Sequence[int], normalisation: int, onesided: bool) -> ComplexTensor:
    """Of the last dim the first half, if ``onesided``; then of the others."""
    last = dims[-1]
    length = x.shape[last]
    cosines, sines = _roots(length, length // 2 + 1 if onesided else length, x)
    # Not a negation: the imaginary part of what is real is a positive zero.
    pair = ComplexTensor(_along(x, last, cosines), 0.0 - _along(x, last, sines))
    result = _transformed(pair, dims[:-1], forward=True)
    scale = _scale(normalisation, [x.shape[d] for d in dims])
    return ComplexTensor(result.re * scale, result.im * scale)


def _c2r(x: ComplexTensor, dims: Sequence[int], normalisation: int, last_size: int) -> torch.Tensor:
    """The inverse of the one-sided transform: what its other half would add is counted twice."""
    last = dims[-1]
    pair = _transformed(x, dims[:-1], forward=False)
    half = last_size // 2 + 1
    cosines, sines = _roots(last_size, half, pair.re)
    numbers = torch.arange(half, device=pair.re.device)
    once = (numbers == 0) | (numbers * 2 == last_size)
    weights = torch.where(once, 1.0, 2.0).to(pair.re.dtype)
    real, imaginary = pair.re.narrow(last, 0, half), pair.im.narrow(last, 0, half)
    result = _along(real, last, (cosines * weights).mT) - _along(imaginary, last, (sines * weights).mT)
    lengths = [*(x.shape[d] for d in dims[:-1]), last_size]
    return result * _scale(normalisation, lengths)


def _window(window: torch.Tensor | None, length: int, size: int, like: torch.Tensor) -> torch.Tensor:
    """The window, or ones, in the middle of a frame."""
    if window is None:
        window = torch.ones(length, dtype=like.dtype, device=like.device)
    left = (size - length) // 2
    return torch.nn.functional.pad(window, [left, size - length - left])


def _stft(
    x: torch.Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: torch.Tensor | None = None,
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Any:
    """Transforms of the frames of a signal (N, T), or (T): (N, frequency, frame)."""
    frames = [
        (part if part.dim() == 2 else part.unsqueeze(0)).unfold(-1, n_fft, hop_length or n_fft // 4)
        for part in ((x.re, x.im) if isinstance(x, ComplexTensor) else (x,))
    ]
    shape = _window(window, win_length or n_fft, n_fft, frames[0])
    frames = [part * shape for part in frames]
    last = frames[0].dim() - 1
    if len(frames) == 2:
        pair = _c2c(ComplexTensor(*frames), [last], int(normalized), True)
    else:
        pair = _r2c(frames[0], [last], int(normalized), onesided is not False)
    result = ComplexTensor(pair.re.transpose(1, 2), pair.im.transpose(1, 2))
    if x.dim() == 1:
        result = ComplexTensor(result.re.squeeze(0), result.im.squeeze(0))
    return result if return_complex else _as_real(result)


def _istft(
    x: ComplexTensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: torch.Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Any:
    """Inverse transforms, added where they overlap, over the sum of the squares of their windows."""
    hop = hop_length or n_fft // 4
    single = x.re.dim() == 2
    real, imaginary = (p.unsqueeze(0) if single else p for p in (x.re, x.im))
    pair = ComplexTensor(real.transpose(1, 2), imaginary.transpose(1, 2))
    normalisation = 1 if normalized else 2
    if return_complex:
        both = _c2c(pair, [2], normalisation, False)
        frames = torch.stack([both.re, both.im], 0)
    else:  # of two-sided frames the first half
        frames = _c2r(pair, [2], normalisation, n_fft).unsqueeze(0)
    shape = _window(window, win_length or n_fft, n_fft, frames)
    count = frames.shape[2]
    total = n_fft + hop * (count - 1)
    starts = torch.arange(count, device=frames.device).unsqueeze(1) * hop
    places = (starts + torch.arange(n_fft, device=frames.device)).reshape(-1)
    begun = frames.new_zeros((frames.shape[0], frames.shape[1], total))
    signal = begun.index_add(2, places, (frames * shape).flatten(2))
    weight = frames.new_zeros((total,)).index_add(0, places, (shape * shape).repeat(count))
    begin = n_fft // 2 if center else 0
    end = begin + length if length is not None else total - begin
    result = signal[..., begin:end] / weight[begin:end]
    if length is not None and result.shape[2] < length:
        result = torch.nn.functional.pad(result, [0, length - result.shape[2]])
    result = result.squeeze(1) if single else result
    return ComplexTensor(result[0], result[1]) if return_complex else result[0]


_OF_GRAPHS: dict[Any, Any] = {aten.stft.default: _stft, aten.istft.default: _istft}
"""Rules for ops that torch itself takes apart, into steps that write in place or read tensors."""
_RULES: dict[Any, Any] = {
    aten.complex.default: _complex,
    aten.polar.default: _polar,
    aten.view_as_complex.default: _as_complex,
    aten.view_as_real.default: _as_real,
    aten._to_copy.default: _copied,
    torch.ops.prims.convert_element_type.default: _to_type,
    aten._fft_c2c.default: _c2c,
    aten._fft_r2c.default: _r2c,
    aten._fft_c2r.default: _c2r,
}
