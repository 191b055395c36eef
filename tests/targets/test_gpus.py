"""GPUs by name: what the table says, what texts mean, which device is which product."""

from __future__ import annotations

import pytest

from mansard.compiler.targets import backend, resolve_targets
from mansard.drivers.vulkan.target_text import BASELINE, is_feature, of_device, parse
from mansard.dtypes import DType
from mansard.errors import CodegenError
from mansard.hal.device import DeviceInfo
from mansard.placement import PlacementOptions
from mansard.targets.gpus import known_gpus, product_of
from mansard.targets.profile import default_profile, gpu_profile

GPUS = known_gpus()


@pytest.mark.parametrize("name", sorted(GPUS))
def test_every_entry_is_sound(name: str) -> None:
    gpu = GPUS[name]
    assert all(map(is_feature, gpu.features)), {f for f in gpu.features if not is_feature(f)}
    assert ("cooperative_matrix" in gpu.features) == bool(gpu.matrices)
    lower, upper = gpu.subgroup
    assert 1 <= lower <= upper <= 128
    assert lower & (lower - 1) == upper & (upper - 1) == 0
    assert gpu.kind in ("discrete", "integrated", "software")
    assert gpu.shared >= 16384
    assert 128 <= gpu.workgroup <= 1024
    if gpu.units is not None:  # a product
        assert gpu.bandwidth is not None and gpu.f32 is not None
        assert 0.001 < gpu.bandwidth / gpu.f32 < 0.25, "bytes to operations of a real chip"
        assert [product_of(DeviceInfo("vulkan", 0, part, "vulkan:1.3")) for part in gpu.devices] == [gpu]
    kernel = backend("vulkan").parse_target(f"vulkan:{name}")
    assert kernel.name == f"vulkan:{name}"
    assert kernel.is_gpu
    assert len(kernel.matrices) == len(gpu.matrices)
    assert gpu_profile(gpu).bandwidth > 0


def test_names_people_and_compilers_use() -> None:
    names = {
        "valhall4": "valhall4 mali-g715", "rdna3": "rdna3 gfx1100 rx7900xtx",
        "ampere": "ampere sm_86 rtx3090", "ada": "ada sm_89 rtx4090",
        "hopper": "hopper sm_90 h200", "adreno": "adreno adreno-750",
        "apple": "apple m1", "apple8": "m2", "rdna2": "gfx1033 steam-deck", "arm5": "mali-g720",
    }  # fmt: skip
    for architecture, texts in names.items():
        assert {GPUS[name].architecture for name in texts.split()} == {architecture}


def test_matrices_are_shapes_for_schedules() -> None:
    target = backend("vulkan").parse_target("vulkan:hopper")
    shapes = {(s.m, s.n, s.k, s.operand, s.accumulator) for s in target.matrices}
    assert (16, 16, 16, DType.BF16, DType.F32) in shapes
    assert (16, 16, 16, DType.F16, DType.F32) in shapes
    assert backend("vulkan").parse_target("vulkan:hopper,-cooperative_matrix").matrices == ()
    narrower = backend("vulkan").parse_target("vulkan:hopper,-float16").matrices
    assert {s.operand for s in target.matrices} - {s.operand for s in narrower} == {DType.F16}


@pytest.mark.parametrize(
    ("text", "shortest"),
    [
        ("vulkan", "vulkan:1.3"),
        ("vulkan:1.3+float16+units=4", "vulkan:1.3+float16"),
        ("vulkan:H200", "vulkan:h200"),
        ("vulkan:h200+units=120,-float16", "vulkan:h200+units=120,-float16"),
        ("vulkan:mali-g715+subgroup=8..16", "vulkan:mali-g715+subgroup=8..16"),
        ("vulkan:1.3+subgroup=32+matrix_16x16x16_f16_f32", "vulkan:1.3+matrix_16x16x16_f16_f32+subgroup=32"),
    ],
)
def test_a_text_says_the_same_in_its_shortest_form(text: str, shortest: str) -> None:
    assert str(parse(text)) == shortest
    assert parse(shortest) == parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vulkan:rtx4091", "did you mean vulkan:rtx4090"),
        ("vulkan:gfx1104", "did you mean .*vulkan:gfx110"),
        ("vulkan:mali_g715", "did you mean .*vulkan:mali-g715"),
        ("vulkan:2.0", r"known: vulkan:1\.3, architectures \(ada, "),
        ("vulkan:h200+float15", "unknown feature 'float15'.*known: .*float16"),
        ("vulkan:h200+units=many", "unknown feature 'units=many'"),
    ],
)
def test_a_wrong_text_is_answered_with_what_is_near(text: str, message: str) -> None:
    with pytest.raises(CodegenError, match=message):
        parse(text)


@pytest.mark.parametrize(
    ("name", "product"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA GeForce RTX 4070", "rtx4070"),
        ("NVIDIA GeForce RTX 4070 Ti", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("AMD Radeon RX 7900 XTX (RADV NAVI31)", "rx7900xtx"),
        ("AMD Custom GPU 0405 (RADV VANGOGH)", "steam-deck"),
        ("Apple M2", "m2"),
        ("Apple M2 Max", "m2-max"),
        ("Apple M2 Pro", None),
        ("Adreno (TM) 750", "adreno-750"),
        ("Mali-G715-Immortalis MC11", "mali-g715"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40", None),
        ("llvmpipe (LLVM 15.0.6, 256 bits)", None),
    ],
)
def test_products_by_the_names_of_devices(name: str, product: str | None) -> None:
    match = product_of(DeviceInfo("vulkan", 0, name, "vulkan:1.3"))
    assert (match.name if match else None) == product


def device(name: str, kind: str = "discrete", **limits: int) -> DeviceInfo:
    features = dict.fromkeys(BASELINE | {"float16"}, True) | {"float64": False}
    return DeviceInfo("vulkan", 0, name, "vulkan:1.3", kind=kind, features=features, limits=limits)


def test_cores_come_from_the_driver_then_the_product_then_the_kind() -> None:
    def cores(info: DeviceInfo) -> tuple[int, int]:
        limits = of_device(info).limits
        return limits["units"], limits["resident"]

    reported = device("NVIDIA H200", compute_units=120, resident_invocations=120 * 2048)
    assert cores(reported) == (120, 120 * 2048 // 4)
    assert cores(device("NVIDIA H200")) == (132, 132 * 2048 // 4)
    assert cores(device("Some GPU")) == (64, 1 << 16)
    assert cores(device("Some GPU", "integrated")) == (8, 1 << 12)
    assert cores(device("llvmpipe", "software", compute_units=2)) == (2, 64)


def test_a_device_is_a_target_with_what_it_reports() -> None:
    sizes = {"min_subgroup_size": 32, "max_subgroup_size": 64}
    target = of_device(device("Some GPU", workgroup_invocations=1024, shared_memory=49152, **sizes))
    text = "vulkan:1.3+float16+workgroup=256+shared=49152+resident=65536+units=64+subgroup=32..64"
    assert str(target) == text
    assert parse(text) == target


def test_the_hint_is_a_product_only_if_the_device_can_all_of_it() -> None:
    vulkan = backend("vulkan")
    assert vulkan.hint(device("Apple M2")).startswith("vulkan:1.3+float16+")
    able = dict.fromkeys(BASELINE | GPUS["m2"].features, True)
    m2 = DeviceInfo("vulkan", 0, "Apple M2", "vulkan:1.3", kind="integrated", features=able)
    assert vulkan.hint(m2) == "vulkan:m2"


def test_profiles_scale_with_the_product() -> None:
    h200, h100 = gpu_profile(GPUS["h200"]), gpu_profile(GPUS["h100"])
    base = default_profile("discrete")
    assert h200.bandwidth == base.bandwidth and h200.rates == base.rates
    assert h100.bandwidth == pytest.approx(base.bandwidth * 3.35 / 4.8)
    assert h100.rates["f32"] == base.rates["f32"]
    phone = gpu_profile(GPUS["mali-g57"])
    assert phone.unified and phone.rates["f32"] < default_profile("integrated").rates["f32"]
    (target,) = resolve_targets(["vulkan:mali-g57"], PlacementOptions(fallback="error"))
    assert target.slot.profile == phone
