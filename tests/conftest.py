"""What every test shares: a software Vulkan driver where there is no GPU, and the rule on skips.

The environment is set before any test module is imported, since drivers read it once.
"""

from __future__ import annotations

import atexit
import functools
import gc
import os
import random
import shutil
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import hypothesis
import pytest

_GATES = {"vulkan": "a Vulkan", "emulation": "an emulation"}
"""Markers of tests that must run in CI, and what such a test is called."""
_VULKAN_FOLDERS = (Path("/etc/vulkan"), Path("/usr/local/share/vulkan"), Path("/usr/share/vulkan"))


def _find(folder: str, pattern: str) -> Path | None:
    """The first Vulkan manifest of that name in the places the loader looks at."""
    for base in _VULKAN_FOLDERS:
        for path in sorted((base / folder).glob(pattern)):
            return path
    return None


def _has_gpu() -> bool:
    """Whether the kernel offers a GPU node (DRM render node, or NVIDIA's own)."""
    dev = Path("/dev")
    return any(dev.glob("dri/renderD*")) or any(dev.glob("nvidia[0-9]*"))


def _prepare_environment() -> None:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # Messages of the commands are not wrapped at the width of whatever terminal this is.
    os.environ["COLUMNS"] = "200"
    # Tests neither read nor fill the user's cache of kernels and pipelines; the processes of pytest-xdist
    # share the one of the process that started them.
    if "PYTEST_XDIST_WORKER" not in os.environ:
        cache = tempfile.mkdtemp(prefix="mansard-test-cache-")
        os.environ["MANSARD_CACHE_DIR"] = cache
        atexit.register(shutil.rmtree, cache, ignore_errors=True)
    named = any(name in os.environ for name in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES"))
    lavapipe = _find("icd.d", "lvp_icd*.json")
    if not named and lavapipe is not None and not _has_gpu():
        # Only the software driver: the others would load, find no device and print about it.
        # Loaders before 1.3.207 know only the second name.
        os.environ["VK_DRIVER_FILES"] = os.environ["VK_ICD_FILENAMES"] = str(lavapipe)
    if _find("explicit_layer.d", "*khronos_validation*.json") is not None:
        os.environ.setdefault("MANSARD_VULKAN_VALIDATION", "1")


_prepare_environment()
pytest.register_assert_rewrite("support")
# The same examples in every run, and no limits of time: a machine may be busy or slow.
hypothesis.settings.load_profile("ci")


_LONG = (
    "tests/models/test_models.py", "tests/models", "tests/cross", "tests/plugins", "tests/frontends",
    "tests/drivers/vulkan", "tests/native", "tests/devices", "tests/calibration", "tests/kernels",
    "tests/fuzz",
)  # fmt: skip
"""Modules and folders with long tests, the longest first: no process ends long after the others."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long modules come first; the tests of a module stay together, in their order."""

    @functools.cache
    def place(path: Path) -> int:
        folders = (n for n, long in enumerate(_LONG) if path.is_relative_to(config.rootpath / long))
        return next(folders, len(_LONG))

    items.sort(key=lambda item: place(item.path))
    _thin(items)


def _thin(items: list[pytest.Item]) -> None:
    """Of the variants of a test in a module marked ``variants(n)`` all but each n-th are slow, the first is
    not; one that is for other reasons does not count."""
    seen: Counter[object] = Counter()
    for item in items:
        marker = item.get_closest_marker("variants")
        function = getattr(item, "originalname", None)
        if marker is None or not hasattr(item, "callspec") or item.get_closest_marker("slow"):
            continue
        if seen[item.path, item.parent, function] % marker.args[0]:
            item.add_marker(pytest.mark.slow)
        seen[item.path, item.parent, function] += 1


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """What a test draws from the generators that all share does not depend on the tests before it."""
    seed = zlib.crc32(item.nodeid.encode())
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Garbage collections, which many tests ask for, do not look through what tests of other folders have
    imported: with the frameworks among it that takes half a second."""
    if nextitem is not None and _folder(nextitem) != _folder(item):
        _freeze()


def _folder(item: pytest.Item) -> tuple[str, ...]:
    return item.path.relative_to(item.config.rootpath).parts[:2]


def _freeze() -> None:
    """What is there now is not looked through again by each garbage collection."""
    gc.collect()
    gc.freeze()


def pytest_collection_finish() -> None:
    _freeze()
    # Compilers allocate much that lives for a moment.
    gc.set_threshold(50_000, 50, 50)


def _in_ci() -> bool:
    return os.environ.get("CI", "").lower() in ("1", "true", "yes")


def _skip_reason(longrepr: object) -> str:
    return str(longrepr[2]) if isinstance(longrepr, tuple) else str(longrepr)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI a Vulkan or emulation test that skips itself fails: what tests nothing must not be green."""
    report = yield
    expected = hasattr(report, "wasxfail")
    if _in_ci() and report.skipped and not expected:
        for marker, kind in _GATES.items():
            if item.get_closest_marker(marker):
                report.outcome = "failed"
                report.longrepr = f"{kind} test may not be skipped in CI: {_skip_reason(report.longrepr)}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a whole module of Vulkan tests that skips itself while it is imported."""
    report = yield
    skipped_module = report.outcome == "skipped" and isinstance(collector, pytest.Module)
    if _in_ci() and skipped_module and "mark.vulkan" in collector.path.read_text(encoding="utf-8"):
        report.outcome = "failed"
        report.longrepr = f"Vulkan tests may not be skipped in CI: {_skip_reason(report.longrepr)}"
    return report


@pytest.fixture(autouse=True)
def _validation_layer_is_silent(request: pytest.FixtureRequest) -> Generator[None]:
    """After a Vulkan test the validation layer, where it is installed, has nothing to report."""
    yield
    if request.node.get_closest_marker("vulkan") is None:
        return
    from mansard.hal import registry

    driver = registry.drivers()["vulkan"]
    messages = driver.validation_messages(clear=True)  # type: ignore[attr-defined]
    assert not messages, messages
