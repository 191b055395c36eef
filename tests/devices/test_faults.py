"""A device that fails or never ends: the call says so, everything else goes on."""

import threading

import numpy as np
import pytest
from support.graph_runner import compare, compiled, outputs
from support.graphs import F32, matmul, softmax, unary

from mansard.errors import ExecutionError, WaitTimeoutError
from mansard.hal import registry
from mansard.ir import GraphBuilder
from mansard.ir.interpreter.graph import interpret
from mansard.placement import PlacementOptions

pytestmark = pytest.mark.vulkan
RNG = np.random.default_rng(3)
TIMEOUT = 60.0
UNKNOWN = -13  # VK_ERROR_UNKNOWN: an error that leaves the device usable


@pytest.fixture
def vulkan():
    usable = [i for i in registry.devices() if i.driver == "vulkan" and i.supported]
    if not usable:
        pytest.skip("no Vulkan 1.3 device")
    device = registry.open_device("vulkan")
    yield device
    device.let_go()


def chain():
    """Three dispatches one after another."""
    b = GraphBuilder()
    x, w = b.input("x", (16, 24), F32), b.input("w", (24, 24), F32)
    return b.build([softmax(b, unary(b, "neg", matmul(b, matmul(b, x, w), w)))])


INPUTS = [RNG.standard_normal((16, 24)).astype(np.float32), RNG.standard_normal((24, 24)).astype(np.float32)]


def split():
    """The chain on the CPU, with its second product on Vulkan."""
    pins = (("contraction_1", "vulkan"), ("*", "cpu"))
    return compiled(chain(), "cpu", "vulkan", placement=PlacementOptions(pins=pins))


@pytest.mark.parametrize("make", [split, lambda: compiled(chain(), "vulkan")], ids=["split", "vulkan"])
def test_a_failure_in_the_middle_is_raised_and_the_next_call_is_right(vulkan, make):
    expected = interpret(chain(), INPUTS)
    with make() as model:
        compare(outputs(model, INPUTS), expected)
        for _ in range(3):
            vulkan.inject(result=UNKNOWN)
            with pytest.raises(ExecutionError, match="VK_ERROR_UNKNOWN"):
                model(*INPUTS, timeout=TIMEOUT)
            compare(outputs(model, INPUTS), expected)


def test_other_requests_go_on_while_one_fails(vulkan):
    expected = interpret(chain(), INPUTS)
    with split() as ours, compiled(chain(), "cpu") as other:
        wrong = []

        def calls():
            for _ in range(30):
                try:
                    compare(outputs(other, INPUTS), expected)
                except Exception as error:
                    wrong.append(error)

        thread = threading.Thread(target=calls)
        thread.start()
        for _ in range(10):
            vulkan.inject(result=UNKNOWN)
            with pytest.raises(ExecutionError):
                ours(*INPUTS, timeout=TIMEOUT)
        thread.join()
        assert not wrong


def test_the_first_call_of_each_of_many_models_fails_alike(vulkan):
    """What the driver submits for itself while models are loaded and released takes no injected failure."""
    for _ in range(20):
        with split() as model:
            vulkan.inject(result=UNKNOWN)
            with pytest.raises(ExecutionError, match="VK_ERROR_UNKNOWN"):
                model(*INPUTS, timeout=TIMEOUT)


def test_work_for_another_device_completes_while_one_never_finishes(vulkan):
    expected = interpret(chain(), INPUTS)
    with compiled(chain(), "vulkan") as stuck, compiled(chain(), "cpu") as free:
        compare(outputs(stuck, INPUTS), expected)
        vulkan.inject(hang=True)
        with pytest.raises(WaitTimeoutError):
            stuck(*INPUTS, timeout=0.05)
        compare(outputs(free, INPUTS), expected)  # submitted after the one that hangs
        vulkan.let_go()
        compare(outputs(stuck, INPUTS), expected)


def test_a_split_model_with_a_hanging_part_times_out_and_recovers(vulkan):
    expected = interpret(chain(), INPUTS)
    with split() as model:
        vulkan.inject(hang=True)
        with pytest.raises(WaitTimeoutError):
            model(*INPUTS, timeout=0.05)
        vulkan.let_go()
        compare(outputs(model, INPUTS), expected)


def test_running_out_of_device_memory_names_the_sizes(vulkan):
    from mansard.errors import OutOfMemoryError

    with compiled(chain(), "vulkan") as model:
        vulkan.inject(allocation=True)
        with pytest.raises(OutOfMemoryError):
            model(*INPUTS, timeout=TIMEOUT)
        compare(outputs(model, INPUTS), interpret(chain(), INPUTS))
