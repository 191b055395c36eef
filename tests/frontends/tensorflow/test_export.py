"""TensorFlow models: what needs no TensorFlow here, and what `make tensorflow-test` runs with it."""

import numpy as np
import pytest

import mansard
from mansard.errors import ImportModelError
from mansard.frontends import frontends, import_model


def saved_model(folder):
    (folder / "saved_model.pb").write_bytes(b"")
    return folder


def test_a_saved_model_is_recognised_by_its_file(tmp_path):
    frontend = frontends()["tensorflow"]
    assert not frontend.accepts(tmp_path)
    assert frontend.accepts(saved_model(tmp_path))
    assert frontend.accepts("net.keras")
    assert not frontend.accepts("a\0b")


def test_without_tensorflow_the_error_says_how_to_have_it(tmp_path, monkeypatch):
    monkeypatch.delenv("MANSARD_TENSORFLOW_PYTHON", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportModelError, match="pip install tensorflow, or name an interpreter"):
        import_model(saved_model(tmp_path))


def test_an_interpreter_that_is_none_or_has_no_tensorflow_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("MANSARD_TENSORFLOW_PYTHON", str(tmp_path / "python"))
    with pytest.raises(ImportModelError, match="cannot be run"):
        import_model(saved_model(tmp_path))
    monkeypatch.setenv("MANSARD_TENSORFLOW_PYTHON", "/bin/false")
    with pytest.raises(ImportModelError, match=r"cannot export .* as StableHLO: it ended with 1"):
        import_model(tmp_path)


def test_models_of_tensorflow_match_it(tmp_path):
    tf = pytest.importorskip(
        "tensorflow", reason="make tensorflow-test runs it in an environment with TensorFlow"
    )
    rng = np.random.default_rng(0)
    weights = tf.Variable(rng.standard_normal((4, 5), np.float32))

    @tf.function
    def function(x):
        return tf.nn.softmax(x @ weights), tf.nn.gelu(x), tf.argmax(x, -1)

    x = rng.standard_normal((3, 4), np.float32)
    with mansard.compile(function, [tf.TensorSpec((None, 4), tf.float32)], devices="cpu") as model:
        for ours, theirs in zip(model(x), function(x), strict=True):
            np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-4, atol=1e-6)
    layers = tf.keras.layers
    network = tf.keras.Sequential(
        [
            layers.Input((16, 16, 3)),
            layers.Conv2D(8, 3, padding="same", activation="relu"),
            layers.BatchNormalization(),
            layers.DepthwiseConv2D(3, strides=2, padding="same"),
            layers.MaxPool2D(),
            layers.Flatten(),
            layers.Dense(10, activation="softmax"),
        ]
    )
    images = rng.standard_normal((5, 16, 16, 3), np.float32)
    network.save(tmp_path / "network.keras")
    network.export(str(tmp_path / "saved"), verbose=False)
    for source in (network, tmp_path / "network.keras", tmp_path / "saved"):
        with mansard.compile(source, devices="cpu") as model:
            np.testing.assert_allclose(model(images), network(images).numpy(), rtol=1e-4, atol=1e-6)


def test_a_recurrent_network_with_attention_matches_keras():
    tf = pytest.importorskip(
        "tensorflow", reason="make tensorflow-test runs it in an environment with TensorFlow"
    )
    layers = tf.keras.layers
    start = tf.keras.Input((6, 8))
    hidden = layers.GRU(12, return_sequences=True)(start)
    hidden = layers.LayerNormalization()(layers.MultiHeadAttention(2, 6)(hidden, hidden))
    network = tf.keras.Model(start, layers.Dense(3)(hidden))
    x = np.random.default_rng(1).standard_normal((2, 6, 8), np.float32)
    with mansard.compile(network, (x,), devices="cpu") as model:
        np.testing.assert_allclose(model(x), network(x).numpy(), rtol=1e-4, atol=1e-5)
