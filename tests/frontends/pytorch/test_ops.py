"""Every op a model is likely to use: imported, run in the reference interpreter, compared with PyTorch.

Ops of one kind are imported as one module: an export costs more than an op.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.frontends.torch_import import import_and_check, import_and_check_all
from torch import nn

torch.manual_seed(0)
randn, rand = torch.randn, torch.rand


def ints(low: int, high: int, *shape: int) -> torch.Tensor:
    return torch.randint(low, high, shape)


def coins(*shape: int) -> torch.Tensor:
    return rand(*shape) > 0.5


MATRIX, CUBE, IMAGE = randn(4, 6), randn(2, 5, 6), randn(2, 3, 8, 8)
UNIT = (rand(3, 4) * 0.8 + 0.1) * torch.tensor([1.0, -1.0, 1.0, -1.0])
POSITIVE = rand(3, 4) + 0.1

ACTIVATIONS: dict[str, nn.Module] = {
    "linear": nn.Linear(6, 5), "linear without bias": nn.Linear(6, 5, bias=False), "relu": nn.ReLU(),
    "layer_norm": nn.LayerNorm(6), "rms_norm": nn.RMSNorm(6), "gelu": nn.GELU(), "gelu tanh": nn.GELU("tanh"),
    "silu": nn.SiLU(), "relu6": nn.ReLU6(), "hardswish": nn.Hardswish(), "hardsigmoid": nn.Hardsigmoid(),
    "softmax": nn.Softmax(-1), "log_softmax": nn.LogSoftmax(-1), "elu": nn.ELU(), "selu": nn.SELU(),
    "leaky_relu": nn.LeakyReLU(), "mish": nn.Mish(), "softplus": nn.Softplus(), "prelu": nn.PReLU(),
    "glu": nn.GLU(-1), "sigmoid": nn.Sigmoid(), "tanh": nn.Tanh(), "dropout": nn.Dropout(0.5),
}  # fmt: skip


def test_layers_of_vectors() -> None:
    import_and_check_all({name: (layer, MATRIX) for name, layer in ACTIVATIONS.items()})


CONVOLUTIONS: dict[str, nn.Module] = {
    "conv": nn.Conv2d(3, 4, 3), "conv stride": nn.Conv2d(3, 4, 3, stride=2, padding=1),
    "conv dilation": nn.Conv2d(3, 4, 3, dilation=2),
    "conv same": nn.Conv2d(3, 4, 3, padding="same", bias=False),
    "depthwise": nn.Conv2d(3, 3, 3, groups=3, padding=1),
    "depthwise multiplier": nn.Conv2d(3, 6, 3, groups=3),
    "transposed": nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1, output_padding=1),
    "batch_norm": nn.BatchNorm2d(3), "instance_norm": nn.InstanceNorm2d(3), "group_norm": nn.GroupNorm(3, 3),
}  # fmt: skip
POOLS: dict[str, nn.Module] = {
    "max_pool": nn.MaxPool2d(2), "max_pool padded": nn.MaxPool2d(3, 2, 1),
    "max_pool ceil": nn.MaxPool2d(3, 2, ceil_mode=True), "avg_pool": nn.AvgPool2d(2),
    "avg_pool padded": nn.AvgPool2d(3, 2, 1),
    "avg_pool inner": nn.AvgPool2d(3, 2, 1, count_include_pad=False),
    "adaptive_avg 1": nn.AdaptiveAvgPool2d(1), "adaptive_avg uneven": nn.AdaptiveAvgPool2d((3, 2)),
    "adaptive_max": nn.AdaptiveMaxPool2d(1),
}  # fmt: skip
RESIZED: dict[str, nn.Module] = {
    "nearest": nn.Upsample(scale_factor=2),
    "nearest uneven": nn.Upsample(size=(11, 5)), "bilinear": nn.Upsample(scale_factor=2, mode="bilinear"),
    "bilinear corners": nn.Upsample(size=(11, 5), mode="bilinear", align_corners=True),
    "bicubic": nn.Upsample(scale_factor=2, mode="bicubic"), "reflect": nn.ReflectionPad2d(2),
    "replicate": nn.ReplicationPad2d(2), "zero pad": nn.ZeroPad2d((1, 2, 0, 3)),
    "constant pad": nn.ConstantPad2d((1, -2, 0, 3), 1.5), "channel_shuffle": nn.ChannelShuffle(3),
}  # fmt: skip


@pytest.mark.parametrize("layers", [CONVOLUTIONS, POOLS, RESIZED], ids=["convolutions", "pools", "resized"])
def test_layers_of_images(layers: dict[str, nn.Module]) -> None:
    if "batch_norm" in layers:
        layers["batch_norm"](IMAGE)  # statistics that are not 0 and 1
    import_and_check_all({name: (layer, IMAGE) for name, layer in layers.items()})


OTHER_LAYERS: dict[str, tuple[Any, ...]] = {
    "grouped conv": (nn.Conv2d(4, 6, 3, groups=2), randn(2, 4, 6, 6)),
    "conv1d": (nn.Conv1d(3, 4, 3, padding=1), randn(2, 3, 9)),
    "conv3d": (nn.Conv3d(2, 3, 2), randn(1, 2, 4, 4, 4)),
    "max_pool1d": (nn.MaxPool1d(2), randn(2, 3, 8)), "avg_pool1d": (nn.AvgPool1d(2), randn(2, 3, 8)),
    "pixel_shuffle": (nn.PixelShuffle(2), randn(2, 4, 3, 3)),
    "embedding": (nn.Embedding(10, 4), ints(0, 10, 2, 3)),
    "embedding_bag": (nn.EmbeddingBag(10, 4, mode="sum"), ints(0, 10, 2, 3)),
    "multihead": (
        nn.MultiheadAttention(8, 2, batch_first=True), randn(2, 5, 8), randn(2, 5, 8), randn(2, 5, 8)),
    "encoder layer": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), randn(2, 5, 8)),
    "lstm": (nn.LSTM(4, 6, batch_first=True), randn(2, 3, 4)), "gru": (nn.GRU(4, 6), randn(3, 2, 4)),
}  # fmt: skip


def test_other_layers() -> None:
    import_and_check_all(OTHER_LAYERS)


UNARY = [
    "erf", "erfc", "exp", "exp2", "expm1", "sin", "cos", "tan", "sinh", "cosh", "asin", "atan", "asinh",
    "atanh", "abs", "neg", "floor", "ceil", "round", "trunc", "sign", "sigmoid", "reciprocal", "square",
    "frac",
    "isnan", "isinf", "isfinite", "signbit",
]  # fmt: skip
UNARY_POSITIVE = ["sqrt", "rsqrt", "log", "log2", "log10", "log1p", "logit"]
BINARY = [
    "add", "sub", "mul", "div", "maximum", "minimum", "fmax", "fmin", "atan2", "fmod", "remainder",
    "copysign",
    "hypot", "logaddexp", "floor_divide", "eq", "ne", "lt", "le", "gt", "ge",
]  # fmt: skip
INTEGER = [
    "add", "sub", "mul", "bitwise_and", "bitwise_or", "bitwise_xor", "maximum", "minimum", "eq", "lt",
    "floor_divide", "remainder", "fmod",
]  # fmt: skip
ELEMENTWISE = {
    "unary": (UNARY, (UNIT,)),
    "unary of positive numbers": (UNARY_POSITIVE, (POSITIVE,)),
    "binary": (BINARY, (UNIT, torch.tensor([0.3, -0.7, 1.1, -2.0]))),
    "binary of integers": (INTEGER, (ints(-9, 9, 3, 4), ints(1, 7, 4))),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise(name: str) -> None:
    functions, inputs = ELEMENTWISE[name]
    import_and_check(lambda *x: tuple(getattr(torch, f)(*x) for f in functions), *inputs)


ELEMENTS: dict[str, tuple[Any, ...]] = {
    "pow": (lambda a: (a**2, a**0.5, a**-1, a**3, a**1.7), POSITIVE),
    "where": (lambda a, b: torch.where(a > 0, a, b), MATRIX, MATRIX * 2),
    "masked_fill": (lambda a, m: a.masked_fill(m, -1e9), MATRIX, coins(4, 6)),
    "clamp": (lambda a: (a.clamp(-0.5, 0.5), a.clamp(min=0.1), a.clamp(max=0.1)), MATRIX),
    "nan_to_num": (lambda a: torch.nan_to_num(a / 0), MATRIX),
    "lerp and addcmul": (
        lambda a, b: (torch.lerp(a, b, 0.3), torch.addcmul(a, b, b, value=0.5)), MATRIX, MATRIX + 1),
    "triangles": (lambda a: (a.tril(), a.triu(1)), MATRIX),
    "booleans": (
        lambda a, b: (a & b, a | b, a ^ b, ~a, a.any(1), a.all(1), a.sum(1), a.float()), coins(3, 4),
        coins(3, 4)),
    "integer division": (
        lambda a, b: (a / b, torch.div(a, b, rounding_mode="trunc")), ints(-9, 9, 4), ints(1, 7, 4)),
    "shifts": (lambda a: (a << 2, a >> 1, ~a), ints(-9, 9, 4)),
}  # fmt: skip
REDUCTIONS: dict[str, tuple[Any, ...]] = {
    "sum": (lambda a: (a.sum(), a.sum(1), a.sum((0, 2), keepdim=True)), CUBE),
    "mean": (lambda a: (a.mean(), a.mean(1), a.mean(-1, keepdim=True)), CUBE),
    "variance": (lambda a: (a.var(), a.var(1), a.std(-1, keepdim=True), a.var(1, unbiased=False)), CUBE),
    "extremes": (lambda a: (a.amax(1), a.amin((0, 1)), a.max(), a.min(), *a.max(1), *a.min(2)), CUBE),
    "arg extremes": (lambda a: (a.argmax(1), a.argmin(-1), a.argmax(1, keepdim=True), a.argmax()), CUBE),
    "softmax over one": (lambda a: (a[..., :1].softmax(-1), a[..., :1].argmax(-1), *a[:, :1].max(1)), CUBE),
    "products": (lambda a: (a.prod(), a.prod(1), a.logsumexp(1)), CUBE),
    "norms": (lambda a: (a.norm(), a.norm(dim=1), F.normalize(a, dim=-1)), CUBE),
    "distances": (
        lambda a, b: (torch.cdist(a, b), F.cosine_similarity(a[:3], b[:3])), randn(3, 4), randn(5, 4)),
    "losses": (lambda a, t: (F.cross_entropy(a, t), F.mse_loss(a, a + 1)), MATRIX, ints(0, 6, 4)),
}  # fmt: skip
ORDERS: dict[str, tuple[Any, ...]] = {
    "cumsum": (lambda a: (a.cumsum(1), a.cumsum(-1), a.cumprod(1)), CUBE),
    "topk": (lambda a: (*a.topk(3, dim=1), *a.topk(2, largest=False)), CUBE),
    "sort": (lambda a: (*a.sort(-1), *a.sort(1, descending=True), a.argsort(-1)), CUBE),
}  # fmt: skip
SHAPES: dict[str, tuple[Any, ...]] = {
    "slice": (lambda a: (a[1:], a[:, 1:4:2], a[..., -1], a[0], a[:, -3:-1]), CUBE),
    "join": (lambda a, b: (torch.cat([a, b], 1), torch.stack([a, b], 0)), CUBE, CUBE + 1),
    "split": (lambda a: (*a.split(2, 1), *a.chunk(3, 2), *a.unbind(0)), CUBE),
    "transpose": (lambda a: (a.transpose(0, 1), a.permute(2, 0, 1), a.mT, a.movedim(0, -1)), CUBE),
    "reshape": (
        lambda a: (a.reshape(-1), a.reshape(5, 12), a.flatten(1), a.view(2, 1, 5, 6).squeeze(1)), CUBE),
    "expand": (
        lambda a: (a.unsqueeze(1).expand(2, 4, 5, 6), a.repeat(1, 2, 1), a.repeat_interleave(2, 1)), CUBE),
    "flip": (lambda a: (a.flip(1), a.roll(1, 2)), CUBE),
    "pad": (lambda a: (F.pad(a, (1, 2)), F.pad(a, (1, 2, 0, 1), value=3.0), F.pad(a, (-1, 1))), CUBE),
    "pad modes": (lambda a: (F.pad(a, (2, 1), mode="reflect"), F.pad(a, (2, 1), mode="circular")), CUBE),
    "windows": (lambda a, b: (a.unfold(1, 2, 1), F.unfold(b, 2)), CUBE, IMAGE),
    "diagonals": (lambda a: (a.diagonal(0, 1, 2), torch.diag(a[0, 0])), CUBE),
    "creation": (
        lambda a: (torch.arange(6) + a, torch.full((2, 2), 3.0), torch.eye(3), torch.linspace(0, 1, 5)),
        MATRIX),
    "constants": (lambda a: (a + torch.tensor([1.0, 2, 3, 4, 5, 6]), torch.tensor([1, 2, 3])), MATRIX),
}  # fmt: skip
INDICES: dict[str, tuple[Any, ...]] = {
    "gather": (lambda a, i: (a.gather(1, i), torch.take_along_dim(a, i, 1)), MATRIX, ints(0, 6, 4, 3)),
    "index": (lambda a, i: (a[i], a[:, i], a[i, i], a[i[:, None], i]), MATRIX, ints(-4, 4, 3)),
    "index_select": (lambda a, i: a.index_select(1, i), MATRIX, ints(0, 6, 3)),
    "index apart": (lambda a, i, j: a[i, :, j], CUBE, ints(0, 2, 3), ints(0, 6, 3)),
    "one_hot": (lambda i: F.one_hot(i, 5), ints(0, 5, 3)),
    "scatter": (
        lambda a, i, b: a.scatter(1, i, b), MATRIX, torch.stack([torch.randperm(6)[:3] for _ in range(4)]),
        randn(4, 3)),
    "topk in any order": (
        lambda a: (
            torch.topk(a, 6, 1, sorted=False)[0].sum(1), torch.topk(a, 1, -1, True, False),
            torch.zeros_like(a).scatter(1, a.topk(2, sorted=False)[1], 1.0),
        ),
        MATRIX,
    ),
    "scatter along the last dim": (
        lambda a, i, b: (
            a.scatter(-1, i, b), a.scatter(-1, i, -torch.inf), a.scatter_add(-1, i, b),
            a.scatter_reduce(-1, i, b, "amax"),
        ),
        MATRIX, torch.stack([torch.randperm(6)[:3] for _ in range(4)]), randn(4, 3),
    ),
    "scatter value": (lambda a, i: a.scatter(1, i, 2.0), MATRIX, ints(0, 6, 4, 3)),
    "scatter_add": (lambda a, i, b: a.scatter_add(1, i, b), MATRIX, ints(0, 6, 4, 3), randn(4, 3)),
    "scatter_reduce": (
        lambda a, i, b: a.scatter_reduce(1, i, b, "amax"), MATRIX, ints(0, 6, 4, 3), randn(4, 3)),
    "index_put": (lambda a, i, b: a.index_put((i,), b), MATRIX, torch.tensor([-1, 0]), randn(2, 6)),
    "index_put add": (
        lambda a, i, j, b: a.index_put((i, j), b, accumulate=True), MATRIX, ints(0, 4, 3), ints(0, 6, 3),
        randn(3)),
    "index_add": (lambda a, i, b: a.index_add(0, i, b), MATRIX, ints(0, 4, 3), randn(3, 6)),
    "index_copy": (lambda a, i, b: a.index_copy(1, i, b), MATRIX, torch.tensor([2, 0]), randn(4, 2)),
    "slice_scatter": (
        lambda a, b: (torch.slice_scatter(a, b, 1, 1, 3), torch.select_scatter(a, b[:, 0], 1, 2)),
        MATRIX, randn(4, 2)),
    "grid_sample": (lambda a, g: F.grid_sample(a, g, align_corners=False), IMAGE, rand(2, 4, 4, 2) * 2 - 1),
}  # fmt: skip
MATRICES: dict[str, tuple[Any, ...]] = {
    "matmul": (
        lambda a, b: (a @ b, torch.mv(a, b[:, 0]), torch.dot(a[0], b[:, 0])), randn(3, 4), randn(4, 5)),
    "bmm": (torch.bmm, randn(2, 3, 4), randn(2, 4, 5)),
    "broadcast matmul": (lambda a, b: a @ b, randn(2, 1, 3, 4), randn(5, 4, 6)),
    "einsum": (
        lambda a, b: (torch.einsum("bij,bjk->bik", a, b), torch.einsum("bij,bjk->ik", a, b)),
        randn(2, 3, 4), randn(2, 4, 5)),
    "addmm": (
        lambda a, b, c: (torch.addmm(a, b, c, beta=2.0), torch.outer(a, a)), randn(5), randn(3, 4),
        randn(4, 5)),
    "integer matmul": (lambda a, b: a @ b, ints(-5, 5, 3, 4), ints(-5, 5, 4, 2)),
}  # fmt: skip


FUNCTIONS = {
    "elements": ELEMENTS, "reductions": REDUCTIONS, "orders": ORDERS, "shapes": SHAPES, "indices": INDICES,
    "matrices": MATRICES,
}  # fmt: skip


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_functions(kind: str) -> None:
    import_and_check_all(FUNCTIONS[kind])


@pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter", "ignore:index_reduce")
def test_scatters_of_older_and_newer_forms() -> None:
    import_and_check(
        lambda a, i, b: (
            a.scatter(1, i, b, reduce="multiply"), a.scatter(-1, i, 2.0, reduce="add"),
            a.scatter(0, i, b, reduce="add"), a.index_reduce(-1, i[0], b, "prod"),
        ),
        randn(4, 6), ints(0, 4, 4, 3), randn(4, 3),
    )  # fmt: skip


DTYPES: dict[str, tuple[Any, ...]] = {
    "casts": (
        lambda a: (a.double(), a.half(), a.bfloat16(), a.int(), a.long(), a.bool(), a.to(torch.int8)),
        MATRIX * 3),
    "f64": (lambda a: (a.softmax(-1), a.mean(1), a @ a.T), MATRIX.double()),
    "f16": (lambda a: (a.softmax(-1), F.gelu(a), F.layer_norm(a, (6,)), a @ a.T), MATRIX.half()),
    "bf16": (lambda a: (a.softmax(-1), a.mean(1), a * 2, a @ a.T), MATRIX.bfloat16()),
    "i32": (lambda a: (a * 3 + 1).sum(0), ints(-9, 9, 4, 3).int()),
    "i16": (lambda a: (a.int() * 2, a + 1), ints(-128, 127, 5).short()),
    "i8": (lambda a, b: (a.float(), a * 2, a + b, a // 3, a > 2, a.sum(), a.amax()),
           ints(-128, 127, 5).to(torch.int8), ints(1, 9, 5).to(torch.int8)),
    "u8": (
        lambda a, b: (a.float() / 255, a + 3, a.long(), a > b, torch.maximum(a, b), a // 3, a.max(),
        a.sum(), a[1:]),
           ints(0, 256, 5).to(torch.uint8), ints(0, 256, 5).to(torch.uint8)),
}  # fmt: skip


def test_dtypes() -> None:
    import_and_check_all(DTYPES)
