"""The device: workers that hang, die or lack packages; the reference model against Mansard's reading."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from mansard_ethos_u import files, vendor
from mansard_ethos_u.device import DRIVER, EthosUDriver
from mansard_ethos_u.files import FORMAT
from support.regions.tosa_samples import samples
from test_conformance import device, spec

from mansard.errors import (
    DeviceUnavailableError,
    ExecutionError,
    InputError,
    TargetMismatchError,
    WorkerCallError,
)
from mansard.hal import BufferRef, DispatchCommand, EntryPoint, ExecutableSpec, Point, Semaphore, Submission
from mansard.hal.program import Program
from mansard.regions.tosa import write_tosa
from mansard.regions.tosa.evaluate import evaluate

SAMPLES = {name: (sketch, graph) for name, sketch, graph in samples()}
HAVE_VELA = pytest.mark.skipif(vendor.absence() is not None, reason=f"{vendor.absence()}")


def launch(npu, name, *arrays, params=()) -> None:
    done = Point(Semaphore(name), 1)
    refs = tuple(BufferRef(npu.import_host(array)) for array in arrays)
    commands = npu.record([DispatchCommand(npu.load(spec(name)), name, refs, params, (1, 1, 1))])
    npu.submit([Submission(commands, (), (done,))])
    done.wait(20)


def test_a_worker_that_hangs_or_dies_is_one_error_and_the_next_region_runs():
    npu = device(limit=0.5)
    out = np.zeros(1, np.int32)
    try:
        with pytest.raises(ExecutionError, match=r"ethos-u: run did not end within 0\.5 s"):
            launch(npu, "hang", out)
        with pytest.raises(ExecutionError, match=r"ethos-u: its process was killed by SIGABRT"):
            launch(npu, "die", out)
        a, c = np.ones(3, np.float32), np.zeros(3, np.float32)
        launch(npu, "add", a, a, c, params=(3,))
        assert c.tolist() == [2, 2, 2]
    finally:
        npu.close()


def test_packages_that_are_missing_are_the_reason_of_an_absent_device(monkeypatch, tmp_path):
    monkeypatch.setenv("MANSARD_ETHOS_U_PYTHON", str(tmp_path / "python"))
    (info,) = EthosUDriver().devices()
    assert "cannot be run: No such file" in info.reasons[0]
    with pytest.raises(DeviceUnavailableError, match="cannot be run"):
        DRIVER.open(info)
    monkeypatch.setenv("MANSARD_ETHOS_U_PYTHON", sys.executable)
    (info,) = EthosUDriver().devices()
    assert "lacks ethos-u-vela==5.2.0 (not installed), tosa-tools==2026.8.0" in info.reasons[0]
    monkeypatch.delenv("MANSARD_ETHOS_U_PYTHON")
    (info,) = EthosUDriver().devices()
    assert "MANSARD_ETHOS_U_PYTHON=/path/to/its/python" in info.reasons[0]


def test_other_code_and_settings_are_refused():
    npu = device()
    try:
        entry = (EntryPoint("x", 1, 0),)
        for code, text in (
            (b"junk", "a program has more"),
            (Program(b"junk", (), ()).encode(), "no compiled"),
        ):
            with pytest.raises(TargetMismatchError, match=text):
                npu.load(ExecutableSpec(FORMAT, "ethos-u:u85-256", code, entry))
        with pytest.raises(TargetMismatchError, match="loads 'ethos-u-region'"):
            npu.load(ExecutableSpec("elf", "ethos-u:u85-256", b"", entry))
    finally:
        npu.close()
    with pytest.raises(InputError, match="it has limit, in seconds"):
        EthosUDriver().configure(clock=1)


@HAVE_VELA
@pytest.mark.parametrize("name", SAMPLES)
def test_the_reference_model_computes_what_mansard_reads_in_the_specification(name):
    sketch, graph = SAMPLES[name]
    program, arrays = write_tosa(graph), sketch.arrays()
    flatbuffer = vendor.compiler().call("serialise", program.plain())
    inputs = [array.view(np.int8) for array in arrays]
    results = vendor.compiler().make("load", flatbuffer).call("run", inputs, [])
    for result, ours in zip(results, evaluate(program, arrays), strict=True):
        np.testing.assert_array_equal(result.reshape(ours.shape), ours)


@HAVE_VELA
def test_vela_compiles_a_program_for_each_npu_or_says_what_it_does_not_take():
    resize = write_tosa(SAMPLES["nearest half_pixel"][1]).plain()
    for name, npu in vendor.ACCELERATORS.items():
        compiled = vendor.compiler().call(
            "compile_program", write_tosa(SAMPLES["convolution"][1]).plain(), *npu[:-1]
        )
        parts, facts = files.unpack(files.pack(compiled, name, npu.clock))
        assert facts["cycles"] > 0 and facts["ops"] and parts[files.STREAM][:4] == b"COP1"
        if npu.name == "EthosU85":
            assert vendor.compiler().call("compile_program", resize, *npu[:-1])["cycles"] > 0
        else:
            with pytest.raises(WorkerCallError, match=r"operation \(Resize\) could not run on NPU"):
                vendor.compiler().call("compile_program", resize, *npu[:-1])
