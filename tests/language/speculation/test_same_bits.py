"""On a CPU, a token's logits are the same to the last bit alone and among others of a window."""

import numpy as np
import pytest
from support.decoders.checkpoints import write_decoder
from support.kernels.runner import require_cpu

from mansard.api.compilation import model_of
from mansard.compiler import CompileOptions, compile_methods
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.frontends.decoders.checkpoint import open_checkpoint
from mansard.frontends.decoders.decoder import DecoderOptions, build_decoder
from mansard.frontends.decoders.families import describe
from mansard.quantisation import quantize

SHAPE = {
    "hidden_size": 128, "intermediate_size": 192, "max_position_embeddings": 320, "vocab_size": 200,
    "num_hidden_layers": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bits")
    write_decoder(folder, "qwen3", **SHAPE)
    return open_checkpoint(folder)


INT8, INT4 = (quantize(kind, group_size=32, activations="int8") for kind in ("int8", "int4"))
WEIGHTS = quantize("int8", group_size=32)


@pytest.mark.parametrize(
    ("dtype", "target", "quantisation"),
    [
        (DType.F32, "cpu", None),
        pytest.param(DType.BF16, "cpu", None, marks=pytest.mark.slow),
        # Each dtype, each CPU and each kind of weights is in one of the others.
        pytest.param(DType.F32, "cpu:x86-64-v3", None, marks=pytest.mark.slow),
        pytest.param(DType.BF16, "cpu", INT8, marks=pytest.mark.slow),
        (DType.BF16, "cpu", INT4),
        (DType.BF16, "cpu", WEIGHTS),
        (DType.F32, "cpu:x86-64-v3", INT8),
        pytest.param(DType.F32, "cpu:x86-64-v3", WEIGHTS, marks=pytest.mark.slow),
    ],
)
def test_rows_of_a_window_are_those_of_single_steps(checkpoint, dtype, target, quantisation):
    require_cpu(target)
    lengths = {"": Dim("window", 1, 8, typical=4), "one": 1}
    architecture = describe(checkpoint.config)
    graphs = {
        name: build_decoder(
            checkpoint,
            architecture,
            DecoderOptions(
                320, length, dtype=dtype, cache_dtype=dtype, all_logits=True, unpack=quantisation is not None
            ),
        )
        for name, length in lengths.items()
    }
    ids = np.random.default_rng(0).integers(0, SHAPE["vocab_size"], (1, 280))
    options = CompileOptions(targets=(target,), quantisation=quantisation)
    with model_of(compile_methods(graphs, options)) as model:
        for start in range(0, 256, 8):
            model(tokens=ids[:, start : start + 8], positions=np.array([start]))
        one = model.method("one")
        for start in (5, 10, 251):  # windows within a vector of keys, over its end, and over a block's
            alone = [
                one(tokens=ids[:, at : at + 1], positions=np.array([at]))[0] for at in range(start, start + 8)
            ]
            for rows in (1, 3, 8):
                together = model(tokens=ids[:, start : start + rows], positions=np.array([start]))[0]
                assert np.array_equal(together, np.concatenate(alone[:rows]))
