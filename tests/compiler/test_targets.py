"""Target texts: devices that are present, changes of their targets, and what stands for them."""

import dataclasses

import pytest

from mansard.cli.specs import with_vulkan_abi
from mansard.compiler import targets
from mansard.compiler.targets import backend, resolve_targets
from mansard.errors import CodegenError, CompileError
from mansard.hal import DeviceInfo
from mansard.placement import PlacementOptions

ALONE = PlacementOptions(fallback="error")
GPU = DeviceInfo(
    "vulkan",
    1,
    "NVIDIA H200",
    "vulkan:1.3",
    kind="discrete",
    features=dict.fromkeys(("int64", "buffer_device_address", "float16", "storage16", "storage8"), True),
    limits={"storage_range": 1 << 27, "max_allocation": 1 << 30, "loop_iterations": 65535},
)


@pytest.fixture
def gpu(monkeypatch):
    """A GPU as the second device of its driver."""
    monkeypatch.setattr(targets, "_present", lambda driver, index: GPU if driver == "vulkan" else None)
    return backend("vulkan")


def resolve(*texts):
    return resolve_targets(texts, ALONE)


def test_a_present_device_takes_changes_under_its_own_name(gpu):
    (plain,), (changed,) = resolve("vulkan:1"), resolve("vulkan:1+abi=all,-float16")
    assert plain.name == changed.name == "vulkan:1"
    assert plain.kernel == gpu.device_target(GPU)
    assert changed.kernel.features == plain.kernel.features - {"float16"}
    assert "+abi=all" in changed.kernel.name and "+abi" not in plain.kernel.name
    assert (plain.largest_buffer, changed.largest_buffer) == (1 << 30, 1 << 27)
    with pytest.raises(CompileError, match="vulkan:1 is asked for more than once, with different changes"):
        resolve("vulkan:1", "vulkan:1+abi=all")


def test_the_abi_is_part_of_the_target_text():
    vulkan = backend("vulkan")
    for abi in ("descriptors", "all"):
        target = vulkan.parse_target(f"vulkan:1.3+abi={abi}")
        assert target.name == f"vulkan:1.3+abi={abi}"
        assert dataclasses.replace(target, name="vulkan:1.3") == vulkan.parse_target("vulkan:1.3")
    assert vulkan.parse_target("vulkan:1.3+abi=bda").name == "vulkan:1.3"
    with pytest.raises(CodegenError, match="no Vulkan dispatch ABI 'push'; known: bda, descriptors, all"):
        vulkan.parse_target("vulkan:1.3+abi=push")


def test_what_is_made_for_no_device_in_particular_keeps_to_the_limits_of_the_one_here(gpu):
    assert [t.kernel.loop_iterations for t in (*resolve("vulkan:1"), *resolve("vulkan:1.3"))] == [
        65535,
        65535,
    ]
    (other,) = resolve("vulkan:m2")
    assert other.kernel.loop_iterations is None


def test_a_target_stands_for_the_device_that_it_describes():
    vulkan = backend("vulkan")
    here = vulkan.device_target(GPU)
    assert vulkan.stands_for(here, GPU)
    assert vulkan.stands_for(vulkan.parse_target(f"{here.name}+abi=all"), GPU)
    assert vulkan.stands_for(vulkan.parse_target("vulkan:h200"), GPU)
    assert not vulkan.stands_for(vulkan.parse_target("vulkan:1.3"), GPU)
    assert not vulkan.stands_for(vulkan.parse_target("vulkan:hopper"), GPU)  # several products


def test_the_command_line_writes_the_abi_into_the_texts():
    texts = ["cpu", "vulkan", "vulkan:1", "vulkan:hopper,ada,-float16"]
    assert with_vulkan_abi(texts, "bda") == texts
    assert with_vulkan_abi(texts, "all") == [
        "cpu",
        "vulkan+abi=all",
        "vulkan:1+abi=all",
        "vulkan:hopper+abi=all,ada,-float16+abi=all",
    ]
