"""Classifiers, segmentation, poses and a detector."""

from __future__ import annotations

from typing import Any

from benchmarks.model_zoo.vocabulary import Vocabulary

Tensor = Any


def _unit(
    o: Vocabulary, x: Tensor, name: str, out: int, kernel: int = 1, act: str = "relu6", **how: int
) -> Tensor:
    """Convolution, norm, activation."""
    x = o.batch_norm(o.conv(x, f"{name}.conv", out, kernel, **how), f"{name}.norm")
    return o.activation(x, act) if act else x


def _inverted(
    o: Vocabulary, x: Tensor, name: str, shape: tuple[int, int], *, stride: int, dilation: int, expand: int
) -> Tensor:
    """MobileNetV2's block. Sandler et al. (2018)."""
    width, out = shape
    y = _unit(o, x, f"{name}.expand", width * expand) if expand > 1 else x
    wide = width * expand
    y = _unit(o, y, f"{name}.depth", wide, 3, stride=stride, groups=wide, dilation=dilation)
    y = _unit(o, y, f"{name}.project", out, act="")
    return x + y if stride == 1 and width == out else y


STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def _mobilenet_v2(o: Vocabulary, x: Tensor, *, limit: int = 32) -> tuple[Tensor, Tensor]:
    """The features, and those at a stride of 16 before them; strides beyond ``limit`` become dilations."""
    x = _unit(o, x, "stem", 32, 3, stride=2)
    width, stride, dilation, inner = 32, 2, 1, x
    for number, (expand, out, count, step) in enumerate(STAGES):
        if stride * step > limit:
            step, dilation = 1, dilation * 2
        stride *= step
        if number == 5:
            inner = x
        for block in range(count):
            name = f"stages.{number}.{block}"
            x = _inverted(
                o, x, name, (width, out), stride=step if block == 0 else 1, dilation=dilation, expand=expand
            )
            width = out
    return x, inner


def deeplab_v3(o: Vocabulary, pixels: Tensor) -> Tensor:
    """DeepLabV3 over MobileNetV2 at a stride of 16, with the image's mean as a branch. Chen et al. (2017)."""
    x, _ = _mobilenet_v2(o, pixels, limit=16)
    pooled = o.activation(o.linear(o.mean(x), "pooled", 256), "relu")
    near = _unit(o, x, "near", 256, act="relu")
    x = _unit(o, o.concat([o.spread(pooled, near), near]), "joined", 256, act="relu")
    return o.resize(o.conv(x, "classes", 21, bias=True), pixels)


def resnet50(o: Vocabulary, pixels: Tensor) -> Tensor:
    """He et al. (2015), version 1.5."""
    x = o.max_pool(_unit(o, pixels, "stem", 64, 7, "relu", stride=2), 3)
    for stage, (width, count) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(count):
            name, stride = f"layers.{stage}.{block}", 2 if stage and not block else 1
            y = _unit(o, x, f"{name}.reduce", width, act="relu")
            y = _unit(o, y, f"{name}.window", width, 3, "relu", stride=stride)
            y = _unit(o, y, f"{name}.expand", 4 * width, act="")
            short = _unit(o, x, f"{name}.short", 4 * width, act="", stride=stride) if not block else x
            x = o.activation(y + short, "relu")
    return o.linear(o.mean(x), "head", 1000)


def vit_small(o: Vocabulary, pixels: Tensor) -> Tensor:
    """Patches of 16 x 16, width 384, 12 layers. Dosovitskiy et al. (2020)."""
    x = o.tokens(o.patches(pixels, "patches", 384, 16))
    x = o.positions(o.prepend(x, "token"), "position.rows", 197)
    for layer in range(12):
        name = f"layers.{layer}"
        y = o.layer_norm(x, f"{name}.before")
        q, k, v = (o.linear(y, f"{name}.{part}", 384) for part in ("q", "k", "v"))
        x = x + o.linear(o.attention(q, k, v, 6), f"{name}.out", 384)
        y = o.linear(o.layer_norm(x, f"{name}.between"), f"{name}.up", 1536)
        x = x + o.linear(o.activation(y, "gelu"), f"{name}.down", 384)
    return o.linear(o.first(o.layer_norm(x, "last")), "head", 1000)


def _mobilenet_v1(o: Vocabulary, x: Tensor) -> Tensor:
    """Features at a stride of 16. Howard et al. (2017)."""
    x = _unit(o, x, "stem", 32, 3, stride=2)
    width = 32
    steps = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5)
    for number, (out, stride) in enumerate(steps):
        x = _unit(o, x, f"blocks.{number}.depth", width, 3, stride=stride, groups=width)
        x = _unit(o, x, f"blocks.{number}.point", out)
        width = out
    return x


def posenet(o: Vocabulary, pixels: Tensor) -> tuple[Tensor, ...]:
    """Heat maps, offsets, and displacements in both directions. Papandreou et al. (2018)."""
    x = _mobilenet_v1(o, pixels)
    heat, offsets, forward, backward = (
        o.conv(x, f"heads.{name}", width, bias=True)
        for name, width in (("heat", 17), ("offsets", 34), ("forward", 32), ("backward", 32))
    )
    return o.activation(heat, "sigmoid"), offsets, forward, backward


def detector(o: Vocabulary, pixels: Tensor) -> tuple[Tensor, ...]:
    """SSDLite over MobileNetV2 (320 x 320, two levels of three anchors), with suppression: boxes, classes and
    scores of the 20 best. Liu et al. (2016)."""
    coarse, fine = _mobilenet_v2(o, pixels)
    boxes, scores = [], []
    for level, x in enumerate((fine, coarse)):
        for parts, name, width in ((boxes, "boxes", 4), (scores, "scores", 21)):
            channels = 96 if level == 0 else 320
            y = _unit(o, x, f"{name}.{level}.depth", channels, 3, groups=channels)
            y = o.conv(y, f"{name}.{level}.point", 3 * width, bias=True)
            places = 3 * (20 * 20, 10 * 10)[level]
            parts.append(o.reshape(o.tokens(y), (-1, places, width)))
    code, logits = o.join(boxes, 1), o.join(scores, 1)
    anchors = o.constant("anchors", (3 * (20 * 20 + 10 * 10), 4))
    centre = o.columns(code, 0, 2) * o.columns(anchors, 2, 4) * 0.1 + o.columns(anchors, 0, 2)
    half = o.activation(o.columns(code, 2, 4) * 0.2, "exp") * o.columns(anchors, 2, 4) * 0.5
    corners = o.join([centre - half, centre + half], 2)
    likely, kind = o.best(o.columns(o.softmax(logits), 1, 21))
    numbers, kept = o.suppress(corners, likely, 20, 0.5)
    return o.rows(corners, numbers), o.rows(kind, numbers), kept


def unet(o: Vocabulary, pixels: Tensor) -> Tensor:
    """Four levels of two convolutions each way, joined. Ronneberger et al. (2015)."""
    x, kept = pixels, []
    for level, width in enumerate((32, 64, 128, 256)):
        for step in range(2):
            x = _unit(o, x, f"down.{level}.{step}", width, 3, "relu")
        kept.append(x)
        x = o.max_pool(x, 2)
    for step in range(2):
        x = _unit(o, x, f"middle.{step}", 512, 3, "relu")
    for level, width in reversed(tuple(enumerate((32, 64, 128, 256)))):
        x = o.concat([o.conv(o.upsample(x), f"up.{level}.narrow", width, bias=True), kept[level]])
        for step in range(2):
            x = _unit(o, x, f"up.{level}.{step}", width, 3, "relu")
    return o.conv(x, "classes", 2, bias=True)
