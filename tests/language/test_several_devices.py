"""Language models over several devices: tokens are those of one device, memory is within its limits."""

import numpy as np
import pytest
from support.decoders.checkpoints import write_decoder
from support.vulkan_support import usable_device

import mansard
import mansard.placement
from mansard.hal import registry
from mansard.hal.registry import driver
from mansard.language import load_lm

pytestmark = pytest.mark.vulkan
PROMPT = np.random.default_rng(3).integers(0, 97, 21).tolist()
BOTH = ["vulkan", "cpu"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    usable_device()
    path = tmp_path_factory.mktemp("llama")
    write_decoder(path, "llama")
    return path


def opened(folder, **options):
    return load_lm(folder, context=48, chunk=8, **options)


def generated(lm, prompt=PROMPT, count=20):
    return [token.id for token in lm.generate(prompt, count)]


@pytest.fixture(scope="module")
def expected(folder):
    with opened(folder, devices="cpu") as lm:
        tokens = generated(lm)
        assert len(set(tokens)) > 5
        return tokens, generated(lm, PROMPT[:5]), lm.logits(PROMPT)


@pytest.fixture(params=["unified", "discrete"])
def memory_of_vulkan(request, monkeypatch):
    """A Vulkan device that shares the host's memory, and one as if it had memory of its own."""
    if request.param == "unified":
        yield request.param
        return
    vulkan = driver("vulkan")
    vulkan.configure(disable=["unified_memory"])
    others = {name: device for name, device in registry._open.items() if name != "vulkan"}
    monkeypatch.setattr(registry, "_open", others)
    yield request.param
    others["vulkan"].close()
    vulkan.configure(disable=None)


def held(lm, device):
    """Bytes of weights and states that methods hold on a device, each once."""
    plans = [lm.model.plan, *lm.model.plan.methods.values()]
    weights, states = {}, {}
    for plan in plans:
        for value in plan.values:
            if plan.devices[value.device].name != device:
                continue
            if value.weight is not None:
                weights[plan.weights[value.weight].entry] = value.bytes
            elif value.id in {entry for entry, _ in plan.states}:
                states[value.name] = value.bytes
    return sum(weights.values()), sum(states.values())


def test_layers_fill_the_memory_that_a_device_may_use(folder, expected, memory_of_vulkan):
    limits = {"cpu": "80 kB", "vulkan": "140 kB"}
    with opened(folder, devices=BOTH, memory=limits) as lm:
        assert 20_000 < sum(held(lm, "cpu")) < 80_000
        assert 20_000 < sum(held(lm, "vulkan")) < 140_000
        assert generated(lm) == expected[0]
        assert np.abs(lm.logits(PROMPT) - expected[2]).max() < 1e-4
        assert generated(lm, PROMPT[:5]) == expected[1]
        for name in ("prefill", "decode"):
            reasons = {row.reason for row in lm.model.method(name).explain().rows}
            assert any("holds 0.08 MB" in r or "holds 0.14 MB" in r or "kept" in r for r in reasons)
        explanation = lm.explain()
        assert {part.device: (part.weights, part.states) for part in explanation.parts} == {
            device: held(lm, device) for device in BOTH
        }
        for layer in (0, 1):
            assert sum(part.layers.get(layer, 0.0) for part in explanation.parts) == pytest.approx(1)
        for method in ("prefill", "decode"):
            assert sum(part.time[method] for part in explanation.parts) == pytest.approx(1)
        assert str(explanation).startswith("device  layers") and "A decode step:" in str(explanation)


# Each order of the devices and each kind of memory is in one of the others.
@pytest.mark.parametrize(
    ("memory_of_vulkan", "prefill", "decode"),
    [
        ("unified", "vulkan", "cpu"),
        ("discrete", "cpu", "vulkan"),
        pytest.param("unified", "cpu", "vulkan", marks=pytest.mark.slow),
        pytest.param("discrete", "vulkan", "cpu", marks=pytest.mark.slow),
    ],
    indirect=["memory_of_vulkan"],
)
def test_a_prompt_is_read_on_one_device_and_the_text_written_on_another(
    folder, expected, memory_of_vulkan, prefill, decode
):
    with opened(folder, devices=BOTH, method_devices={"prefill": prefill, "decode": decode}) as lm:
        assert lm.model.method("prefill").explain().totals[prefill] > 0
        assert lm.model.method("prefill").explain().totals[decode] == 0
        assert lm.model.method("decode").explain().totals[prefill] == 0
        for prompt, tokens in ((PROMPT, expected[0]), (PROMPT[:5], expected[1]), (PROMPT, expected[0])):
            assert generated(lm, prompt) == tokens
        caches = [row for row in lm.memory() if row.what == "states"]
        size = held(lm, "cpu")[1]
        copies = 1 if memory_of_vulkan == "unified" else 2
        assert sum(row.bytes for row in caches) == pytest.approx(copies * size, rel=0.05)
        # The text goes on behind what decoding wrote, which the other device reads.
        text = [*PROMPT, *expected[0][:10]]
        assert generated(lm, text, 5) == expected[0][10:15]
        assert lm.stats.reused > len(PROMPT)


def test_products_are_divided_between_devices(folder, expected):
    with opened(folder, devices=BOTH, placement=mansard.PlacementOptions(split="all")) as lm:
        for name in ("prefill", "decode"):
            assert lm.model.method(name).plan.splits
        assert generated(lm) == expected[0]
        assert generated(lm, PROMPT[:5]) == expected[1]


def test_limits_that_no_placement_keeps_are_one_error(folder):
    with pytest.raises(mansard.PlacementError, match=r"do not fit the devices.*cpu 0.02 MB"):
        opened(folder, devices=BOTH, memory={"cpu": "20kB", "vulkan": "20kB"})
    with pytest.raises(mansard.PlacementError, match="a memory limit of 'much' for 'cpu'"):
        opened(folder, devices=BOTH, memory={"cpu": "much"})
    with pytest.raises(
        mansard.InputError, match="method_devices names 'decoding'; the methods are 'prefill'"
    ):
        opened(folder, devices=BOTH, method_devices={"decoding": "cpu"})
    with pytest.raises(mansard.PlacementError, match="'prefill' is to run on 'npu', but the devices are"):
        opened(folder, devices=BOTH, method_devices={"prefill": "npu"})


def test_a_device_that_is_lost_ends_the_text_with_its_error(folder, monkeypatch):
    others = {name: device for name, device in registry._open.items() if name != "vulkan"}
    monkeypatch.setattr(registry, "_open", others)
    with opened(folder, devices=BOTH, method_devices={"prefill": "vulkan", "decode": "cpu"}) as lm:
        assert len(generated(lm)) == 20
        others["vulkan"].close()
        for _ in range(2):
            with pytest.raises(mansard.DeviceError, match="the Vulkan device is closed"):
                generated(lm)


def test_an_artifact_is_placed_already(folder, tmp_path, expected):
    with opened(folder, devices=BOTH, memory={"cpu": "80 kB", "vulkan": "140 kB"}) as lm:
        lm.save(tmp_path / "lm.mansard")
    with load_lm(tmp_path / "lm.mansard") as lm:
        assert generated(lm) == expected[0]
        assert all(part.weights for part in lm.explain().parts)
    with pytest.raises(
        mansard.InputError, match="decided when it was compiled: quantize, memory: for checkpoints"
    ):
        load_lm(tmp_path / "lm.mansard", memory={"cpu": "1GB"}, quantize="int8")
    with pytest.raises(mansard.InputError, match="compiled with context=48, not 17"):
        load_lm(tmp_path / "lm.mansard", context=17)


def test_pins_are_those_of_the_methods_that_have_such_dispatches(folder, expected):
    """The copy of a cache has no layers, and only methods that choose a token sample."""
    pins = {"model.layers.0.*": "vulkan", "model.layers.1.*": "cpu", "sampling*": "cpu"}
    placement = mansard.placement.PlacementOptions(pins=pins)
    with load_lm(folder, context=64, chunk=8, sequences=3, devices=BOTH, placement=placement) as lm:
        assert min(held(lm, "cpu")[1], held(lm, "vulkan")[1]) > 10_000
        long = PROMPT + expected[0][:15]
        requests = [lm.engine().submit(prompt, 5) for prompt in (long, long, PROMPT)]
        first, second, third = ([token.id for token in request] for request in requests)
        assert first == second == expected[0][15:] and third == expected[0][:5]
        assert requests[1].reused == len(long) - 1
    wrong = mansard.placement.PlacementOptions(pins={"model.layers.7.*": "cpu"})
    with pytest.raises(mansard.PlacementError, match=r"no dispatch matches 'model\.layers\.7\.\*'"):
        opened(folder, devices=BOTH, placement=wrong)
