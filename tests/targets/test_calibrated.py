"""Measured profiles: kept by device, used by placement, shown, written as a chip, forgotten."""

import dataclasses
import json

import pytest
from support.graphs import F32, unary
from typer.testing import CliRunner

from mansard.calibration import Calibration, to_toml
from mansard.cli.main import app
from mansard.compiler import CompileOptions, compile_graph
from mansard.compiler.targets import resolve_targets
from mansard.hal import registry
from mansard.hal.device import DeviceInfo
from mansard.ir import GraphBuilder
from mansard.placement import PlacementOptions
from mansard.targets.calibrated import FOLDER, calibrated, forget, keep
from mansard.targets.profile import DeviceProfile, LinkProfile, default_profile
from mansard.targets.socs import parse_soc

GPU = DeviceInfo("vulkan", 0, "Some GPU", "vulkan:1.3", driver_version="1", kind="discrete")
HOST = LinkProfile(2e9, 1e-6, 7e-6, ((1e6, 0.0), (1e8, 1e-2)))


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("MANSARD_CACHE_DIR", str(tmp_path))


def profile(name="Some GPU"):
    links = {"host": HOST, "AMD CPU": LinkProfile(3e9, 2e-5, 7e-6)}
    rates, link = {"f32": 1e12, "i8": 4e12}, LinkProfile(1e9, 3e-5, 7e-6, ((1e6, 1e-4), (1e8, 2e-2)))
    small = {"f32": ((1e6, 1e11), (1e8, 1e12))}
    return DeviceProfile(
        name,
        1e9,
        2e9,
        1 << 20,
        rates,
        1e-6,
        link,
        False,
        links,
        "2026-01-02",
        small=small,
        deep=small,
        start=2e-5,
        kinds={"rows": ((1e6, 1e11), (1e8, 1e12))},
        launches=((1e3, 1e-7), (1e5, 1e-6)),
    )


def test_profiles_are_kept_by_device_and_driver_version():
    assert calibrated(GPU) is None
    keep(GPU, profile())
    assert calibrated(GPU) == profile()
    assert calibrated(dataclasses.replace(GPU, driver_version="2")) is None
    assert calibrated(dataclasses.replace(GPU, name="Some GPU Ti")) is None
    forget()
    assert calibrated(GPU) is None
    forget()


@pytest.mark.parametrize("data", [b"{", b"{}", b"[]", b"null", b'{"links": 3}'])
def test_damaged_records_are_none(data):
    from mansard.cache import Folder
    from mansard.targets import calibrated as module

    Folder(FOLDER).put(module._key(GPU), data)
    assert calibrated(GPU) is None


def test_a_cpu_with_other_threads_is_another_device():
    cpu = DeviceInfo("cpu", 0, "AMD CPU", "cpu:x86_64", kind="cpu", limits={"threads": 2})
    keep(cpu, profile("AMD CPU"))
    assert calibrated(cpu) is not None
    assert calibrated(dataclasses.replace(cpu, limits={"threads": 1})) is None


def test_placement_uses_and_names_what_was_measured():
    def slot():
        (target,) = resolve_targets(["cpu"], PlacementOptions())
        return target.slot.profile

    assert slot() == default_profile("cpu")
    (cpu,) = [info for info in registry.devices("cpu") if info.index == 0]
    keep(cpu, profile(cpu.name))
    assert slot() == profile(cpu.name)
    (named,) = resolve_targets(["cpu:x86-64-v3"], PlacementOptions())
    assert not named.slot.profile.measured  # made for another machine, perhaps

    b = GraphBuilder()
    plan = compile_graph(b.build([unary(b, "exp", b.input("x", (8,), F32))]), CompileOptions(("cpu",))).plan
    assert plan.info["calibrated"] == "cpu 2026-01-02"
    shown = CliRunner().invoke(app, ["devices", "--dump"]).stdout
    assert "calibrated: 2026-01-02" in shown
    assert CliRunner().invoke(app, ["calibrate", "--forget"]).exit_code == 0
    assert slot() == default_profile("cpu")


def test_measured_profiles_make_a_chip():
    cpu = dataclasses.replace(GPU, driver="cpu", name="AMD CPU")
    cpu_profile = dataclasses.replace(
        profile("AMD CPU"), unified=True, links={"Some GPU": LinkProfile(5e9, 4e-5)}
    )
    calibrations = [
        Calibration(GPU, profile(), profile(), {}),
        Calibration(cpu, cpu_profile, cpu_profile, {}),
    ]
    soc = parse_soc(to_toml(calibrations), "x")
    as_tables = {
        "vulkan": dataclasses.replace(
            profile("vulkan"),
            measured="",
            links={"host": HOST, "cpu": LinkProfile(3e9, 2e-5, 7e-6)},
        ),
        "cpu": dataclasses.replace(
            cpu_profile, name="cpu", measured="", links={"vulkan": LinkProfile(5e9, 4e-5)}
        ),
    }
    assert soc.devices == as_tables


def test_equal_devices_have_links_to_each_other():
    equal = dataclasses.replace(profile(), links={"Some GPU": LinkProfile(5e9, 4e-5)})
    calibrations = [Calibration(dataclasses.replace(GPU, index=i), equal, equal, {}) for i in range(3)]
    devices = parse_soc(to_toml(calibrations), "x").devices
    assert [sorted(d.links) for d in devices.values()] == [
        ["vulkan:1", "vulkan:2"],
        ["vulkan", "vulkan:2"],
        ["vulkan", "vulkan:1"],
    ]


def test_simulated_devices_alone_are_refused():
    result = CliRunner().invoke(app, ["calibrate", "--device", "null"])
    assert result.exit_code == 1 and "their profile is their model: null" in result.stderr
    assert calibrated(registry.open_device("null").info) is None


def test_nothing_is_measured_of_simulated_devices_beside_others(monkeypatch):
    from mansard.calibration import measure as module

    measured = []

    def run(bench):
        measured.append(bench.device.info.id)
        given = profile(bench.device.info.name)
        return Calibration(bench.device.info, given, given, {})

    monkeypatch.setattr(module.DeviceBench, "run", run)
    monkeypatch.setattr(module, "with_links", lambda devices, calibrations: calibrations)
    arguments = ["calibrate", "--device", "null", "--device", "cpu", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0 and measured == ["cpu"]
    assert "is simulated: its profile is its model, nothing was measured" in result.stderr
    shown = json.loads(result.stdout)
    assert [row["id"] for row in shown["devices"]] == ["cpu"] and shown["simulated"] == ["null"]
    assert calibrated(registry.open_device("null").info) is None
    assert json.loads(CliRunner().invoke(app, ["calibrate", "--forget", "--json"]).stdout) == {"devices": []}
