"""Write ``.tflite`` models by TensorFlow's converter, with random weights, in real numbers and in int8.

Runs in an environment of its own that has TensorFlow (`make tflite-models`), not in Mansard's.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

RNG = np.random.default_rng(3)


def randomised(model: Any) -> Any:
    """A model whose norms have statistics of their own, so that no layer is an identity."""
    for layer in model.layers:
        if isinstance(layer, layers.BatchNormalization):
            shape = layer.get_weights()[0].shape
            layer.set_weights(
                [
                    RNG.uniform(0.6, 1.4, shape),
                    RNG.normal(0, 0.2, shape),
                    RNG.normal(0, 0.2, shape),
                    RNG.uniform(0.6, 1.4, shape),
                ]
            )
    return model


def mobilenet_v1() -> Any:
    return keras.applications.MobileNet(input_shape=(224, 224, 3), weights=None, classifier_activation=None)


def mobilenet_v2() -> Any:
    return keras.applications.MobileNetV2(input_shape=(224, 224, 3), weights=None, classifier_activation=None)


def mobilenet_v3() -> Any:
    return keras.applications.MobileNetV3Small(
        input_shape=(224, 224, 3), weights=None, include_preprocessing=False, classifier_activation=None
    )


def deeplab_v3() -> Any:
    """MobileNetV2 features, spatial pyramid pooling with dilations, and logits at the size of the image."""
    base = keras.applications.MobileNetV2(
        input_shape=(257, 257, 3), alpha=0.5, include_top=False, weights=None
    )
    features = base.get_layer("block_12_add").output
    size = features.shape[1]
    branches = [layers.Conv2D(64, 1, activation="relu")(features)]
    for rate in (2, 4, 6):
        x = layers.DepthwiseConv2D(3, padding="same", dilation_rate=rate, activation="relu")(features)
        branches.append(layers.Conv2D(64, 1, activation="relu")(x))
    pooled = layers.GlobalAveragePooling2D(keepdims=True)(features)
    pooled = layers.Conv2D(64, 1, activation="relu")(pooled)
    branches.append(layers.UpSampling2D(size, interpolation="bilinear")(pooled))
    x = layers.Conv2D(64, 1, activation="relu")(layers.Concatenate()(branches))
    logits = layers.Conv2D(21, 1)(x)
    logits = layers.Lambda(lambda t: tf.compat.v1.image.resize_bilinear(t, (257, 257), align_corners=True))(
        logits
    )
    return keras.Model(base.input, logits)


def posenet() -> Any:
    """MobileNetV1 features with heads of heat maps, offsets and displacements."""
    base = keras.applications.MobileNet(input_shape=(225, 225, 3), alpha=0.5, include_top=False, weights=None)
    features = base.get_layer("conv_pw_11_relu").output
    heads = [layers.Conv2D(n, 1, name=f"head_{n}")(features) for n in (17, 34, 64)]
    heads[0] = layers.Activation("sigmoid")(heads[0])
    return keras.Model(base.input, heads)


def efficientdet_lite() -> Any:
    """MobileNetV2 features, two pyramid levels joined both ways, and heads of boxes and classes."""
    base = keras.applications.MobileNetV2(
        input_shape=(160, 160, 3), alpha=0.5, include_top=False, weights=None
    )
    fine, coarse = (base.get_layer(f"block_{n}_project_BN").output for n in (12, 16))
    fine, coarse = (layers.Conv2D(48, 1)(t) for t in (fine, coarse))
    up = layers.Add()([fine, layers.UpSampling2D(2)(coarse)])
    up = layers.SeparableConv2D(48, 3, padding="same")(layers.Activation("relu6")(up))
    down = layers.Add()([coarse, layers.MaxPooling2D(3, 2, padding="same")(up)])
    down = layers.SeparableConv2D(48, 3, padding="same")(layers.Activation("relu6")(down))
    outputs = []
    for width in (4, 20):
        parts = []
        for level in (up, down):
            x = layers.SeparableConv2D(9 * width, 3, padding="same")(level)
            parts.append(layers.Reshape((-1, width))(x))
        outputs.append(layers.Concatenate(axis=1)(parts))
    outputs[1] = layers.Activation("sigmoid")(outputs[1])
    return keras.Model(base.input, outputs)


class Norm(layers.Layer):
    """MobileBERT's norm: a scale and a shift."""

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(
            shape=(shape[-1],), initializer=keras.initializers.RandomUniform(0.5, 1.5)
        )
        self.shift = self.add_weight(
            shape=(shape[-1],), initializer=keras.initializers.RandomNormal(0.0, 0.1)
        )

    def call(self, x: Any) -> Any:
        return x * self.scale + self.shift


def mobilebert(
    *, blocks: int = 4, length: int = 64, wide: int = 128, narrow: int = 64, heads: int = 4
) -> Any:
    """Bottleneck blocks of attention and stacked feed-forward networks over embedded tokens."""
    ids = keras.Input((length,), dtype="int32", name="ids")
    mask = keras.Input((length,), dtype="float32", name="mask")
    x = layers.Embedding(1000, wide)(ids)
    x = Norm()(x)
    added = layers.Lambda(lambda m: (1.0 - m[:, None, None, :]) * -10000.0)(mask)
    for _ in range(blocks):
        small = Norm()(layers.Dense(narrow)(x))
        shared = Norm()(layers.Dense(narrow)(x))
        q, k, v = layers.Dense(narrow)(shared), layers.Dense(narrow)(shared), layers.Dense(narrow)(x)
        split = layers.Lambda(
            lambda t: tf.transpose(tf.reshape(t, (-1, length, heads, narrow // heads)), (0, 2, 1, 3))
        )
        q, k, v = split(q), split(k), split(v)
        scores = layers.Lambda(
            lambda t: tf.nn.softmax(tf.matmul(t[0], t[1], transpose_b=True) / (narrow / heads) ** 0.5 + t[2])
        )([q, k, added])
        context = layers.Lambda(
            lambda t: tf.reshape(tf.transpose(tf.matmul(t[0], t[1]), (0, 2, 1, 3)), (-1, length, narrow))
        )([scores, v])
        y = Norm()(layers.Add()([layers.Dense(narrow)(context), small]))
        for _ in range(2):
            hidden = layers.Dense(wide, activation="relu")(y)
            y = Norm()(layers.Add()([layers.Dense(narrow)(hidden), y]))
        x = Norm()(layers.Add()([layers.Dense(wide)(y), x]))
    spans = layers.Dense(2)(x)
    start, end = layers.Lambda(lambda t: tf.unstack(t, axis=-1))(spans)
    return keras.Model([ids, mask], [start, end])


def yamnet() -> Any:
    """A waveform of a second, its log mel spectrogram, and separable convolutions over it."""
    wave = keras.Input((15600,), name="waveform")
    mel = tf.signal.linear_to_mel_weight_matrix(64, 257, 16000, 125.0, 7500.0).numpy()

    def features(t: Any) -> Any:
        spectrum = tf.abs(tf.signal.stft(t, 400, 160, 512))
        return tf.math.log(tf.matmul(spectrum, mel) + 0.001)[..., None]

    x = layers.Lambda(features)(wave)
    x = layers.Conv2D(32, 3, 2, padding="same", use_bias=False)(x)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    for filters, stride in ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)):
        x = layers.DepthwiseConv2D(3, stride, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
        x = layers.Conv2D(filters, 1, use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(wave, layers.Dense(521, activation="sigmoid")(x))


def gru() -> Any:
    """A speech model: frames, a GRU, a score for each frame."""
    frames = keras.Input((20, 40), name="frames")
    x = layers.GRU(48, return_sequences=True, unroll=True)(frames)
    return keras.Model(frames, layers.Dense(30, activation="softmax")(x))


def lstm() -> Any:
    """The fused LSTM of TFLite, over frames."""
    frames = keras.Input((16, 24), name="frames")
    x = layers.LSTM(32, return_sequences=True)(frames)
    return keras.Model(frames, layers.Dense(10)(x))


MODELS: dict[str, Callable[[], Any]] = {
    f.__name__: f
    for f in (
        mobilenet_v1, mobilenet_v2, mobilenet_v3, deeplab_v3, posenet, efficientdet_lite, mobilebert, yamnet,
        gru, lstm,
    )
}  # fmt: skip
INTEGERS = (
    "mobilenet_v1",
    "mobilenet_v2",
    "mobilenet_v3",
    "deeplab_v3",
    "posenet",
    "efficientdet_lite",
    "mobilebert",
)
BATCHED = ("mobilenet_v2", "mobilebert", "gru")
"""Models whose batch is left open too."""


def example(model: Any) -> list[Any]:
    """Inputs of a model, for one call."""
    return [
        RNG.integers(0, 1000, (1, *x.shape[1:])).astype(np.int32)
        if "int" in str(x.dtype)
        else RNG.uniform(-1, 1, (1, *x.shape[1:])).astype(np.float32)
        for x in model.inputs
    ]


def converter(model: Any, *, batch: int | None) -> Any:
    """A converter of one concrete function, with a batch of 1 or an open one."""
    specs = [tf.TensorSpec((batch, *x.shape[1:]), x.dtype, name=x.name) for x in model.inputs]
    function = tf.function(lambda *xs: model(list(xs) if len(xs) > 1 else xs[0], training=False))
    frozen = convert_variables_to_constants_v2(function.get_concrete_function(*specs))
    return tf.lite.TFLiteConverter.from_concrete_functions([frozen], model)


def variants(name: str, model: Any) -> Iterator[tuple[str, Any]]:
    """A model's converters by the names of their files."""
    yield name, converter(model, batch=1)
    if name in BATCHED:
        yield f"{name}_batch", converter(model, batch=None)
    if name in INTEGERS:
        dynamic = converter(model, batch=1)
        dynamic.optimizations = [tf.lite.Optimize.DEFAULT]
        yield f"{name}_dynamic", dynamic
        integers = converter(model, batch=1)
        integers.optimizations = [tf.lite.Optimize.DEFAULT]
        integers.representative_dataset = lambda: (example(model) for _ in range(8))
        if name != "mobilebert":
            integers.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
            integers.inference_input_type = integers.inference_output_type = tf.int8
        yield f"{name}_int8", integers
    if name == "mobilenet_v2":
        halves = converter(model, batch=1)
        halves.optimizations = [tf.lite.Optimize.DEFAULT]
        halves.target_spec.supported_types = [tf.float16]
        yield f"{name}_f16", halves


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", default=",".join(MODELS))
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name in arguments.models.split(","):
        keras.utils.set_random_seed(7)
        model = randomised(MODELS[name]())
        for file, how in variants(name, model):
            data = how.convert()
            (arguments.folder / f"{file}.tflite").write_bytes(data)
            print(f"{file}: {len(data):,} bytes", flush=True)


if __name__ == "__main__":
    main()
