"""Text, speech and a step of diffusion."""

from __future__ import annotations

from typing import Any

from benchmarks.model_zoo.vocabulary import Vocabulary

Tensor = Any


def mobilebert(o: Vocabulary, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """24 bottleneck blocks, for questions about a text: scores of begin and end. Sun et al. (2020)."""
    x = o.embed(ids, "words", 30522, 128)
    x = o.linear(o.join([o.shifted(x, 1), x, o.shifted(x, -1)], 2), "embedding", 512)
    x = o.scale_shift(o.positions(x, "position.rows", 512), "embedding.norm")
    for layer in range(24):
        x = _bottleneck(o, x, mask, f"layers.{layer}")
    spans = o.linear(x, "spans", 2)
    return o.column(spans, 0), o.column(spans, 1)


def _bottleneck(o: Vocabulary, x: Tensor, mask: Tensor, name: str) -> Tensor:
    def dense(y: Tensor, part: str, out: int) -> Tensor:
        return o.linear(y, f"{name}.{part}", out)

    def norm(y: Tensor, part: str) -> Tensor:
        return o.scale_shift(y, f"{name}.{part}.norm")

    small, shared = (norm(dense(x, part, 128), part) for part in ("input", "shared"))
    q, k, v = dense(shared, "q", 128), dense(shared, "k", 128), dense(x, "v", 128)
    y = norm(dense(o.attention(q, k, v, 4, mask=mask), "out", 128) + small, "out")
    for step in range(4):
        hidden = o.activation(dense(y, f"up.{step}", 512), "relu")
        y = norm(dense(hidden, f"down.{step}", 128) + y, f"down.{step}")
    return norm(dense(y, "widen", 512) + x, "widen")


def speech(o: Vocabulary, frames: Tensor) -> Tensor:
    """Two recurrent layers over frames of 40 mel bands: a score of each sign for each frame."""
    x = o.activation(o.linear(frames, "in", 128), "relu")
    for layer in range(2):
        x = o.gru(x, f"gru.{layer}", 128)
    return o.softmax(o.linear(x, "signs", 30))


def translator(o: Vocabulary, source: Tensor, mask: Tensor, target: Tensor) -> Tensor:
    """Vaswani et al.'s base model (2017), with norms before layers: the logits of a target's tokens."""
    x = o.positions(o.embed(source, "source", 16000, 512), "source.position.rows", 256)
    for layer in range(6):
        x = _block(o, x, f"encoder.{layer}", x_mask=mask)
    memory = o.layer_norm(x, "encoder.norm")
    y = o.positions(o.embed(target, "target", 16000, 512), "target.position.rows", 256)
    for layer in range(6):
        y = _block(o, y, f"decoder.{layer}", memory=memory, memory_mask=mask)
    return o.linear(o.layer_norm(y, "decoder.norm"), "logits", 16000)


def _block(
    o: Vocabulary,
    x: Tensor,
    name: str,
    *,
    x_mask: Tensor | None = None,
    memory: Tensor | None = None,
    memory_mask: Tensor | None = None,
) -> Tensor:
    def attend(y: Tensor, to: Tensor, part: str, **how: Any) -> Tensor:
        q = o.linear(y, f"{name}.{part}.q", 512)
        k, v = (o.linear(to, f"{name}.{part}.{p}", 512) for p in "kv")
        return o.linear(o.attention(q, k, v, 8, **how), f"{name}.{part}.out", 512)

    y = o.layer_norm(x, f"{name}.norm")
    x = x + attend(y, y, "self", mask=x_mask, causal=memory is not None)
    if memory is not None:
        x = x + attend(o.layer_norm(x, f"{name}.cross.norm"), memory, "cross", mask=memory_mask)
    y = o.linear(o.layer_norm(x, f"{name}.up.norm"), f"{name}.up", 2048)
    return x + o.linear(o.activation(y, "relu"), f"{name}.down", 512)


def diffusion(o: Vocabulary, noisy: Tensor, time: Tensor, context: Tensor, rates: Tensor) -> Tensor:
    """A deterministic step of denoising a latent image, (batch, features of the time) and a text's (batch,
    length, 256); ``rates`` are the factors of image and noise. Rombach et al. (2022), Song et al. (2021)."""
    when = o.linear(o.activation(o.linear(time, "time.0", 256), "silu"), "time.1", 256)
    x, kept = o.conv(noisy, "in", 64, 3, bias=True), []
    for level, width in enumerate((64, 128, 256)):
        x = _residual(o, x, when, f"down.{level}", width, (64, 64, 128)[level])
        if level:
            x = _reader(o, x, context, f"down.{level}.read", width)
        kept.append(x)
        if level < 2:
            x = o.conv(x, f"down.{level}.half", width, 3, stride=2, bias=True)
    x = _reader(o, _residual(o, x, when, "middle", 256, 256), context, "middle.read", 256)
    for level, (width, before) in reversed(tuple(enumerate(((64, 128), (128, 256), (256, 256))))):
        if level < 2:
            x = o.conv(o.upsample(x), f"up.{level}.double", before, 3, bias=True)
        x = _residual(o, o.concat([x, kept[level]]), when, f"up.{level}", width, before + width)
    x = o.activation(o.group_norm(x, "out.norm", 16), "silu")
    noise = o.conv(x, "out", 4, 3, bias=True)
    return noisy * rates[0] + noise * rates[1]


def _residual(o: Vocabulary, x: Tensor, when: Tensor, name: str, out: int, width: int) -> Tensor:
    y = o.conv(
        o.activation(o.group_norm(x, f"{name}.norm.0", 16), "silu"), f"{name}.conv.0", out, 3, bias=True
    )
    y = o.add_channels(y, o.linear(o.activation(when, "silu"), f"{name}.time", out))
    y = o.conv(
        o.activation(o.group_norm(y, f"{name}.norm.1", 16), "silu"), f"{name}.conv.1", out, 3, bias=True
    )
    return y + (x if out == width else o.conv(x, f"{name}.short", out, bias=True))


def _reader(o: Vocabulary, x: Tensor, context: Tensor, name: str, width: int) -> Tensor:
    """Attention within the image, then to the text."""
    y = o.tokens(o.group_norm(x, f"{name}.norm", 16))
    for part, other in (("self", None), ("cross", context)):
        z = o.layer_norm(y, f"{name}.{part}.norm")
        to = z if other is None else other
        q = o.linear(z, f"{name}.{part}.q", width)
        k, v = (o.linear(to, f"{name}.{part}.{p}", width) for p in "kv")
        y = y + o.linear(o.attention(q, k, v, 4), f"{name}.{part}.out", width)
    return x + o.image(y, x)
