"""Entry points are found by reading their files, and agree with what importlib.metadata finds."""

from __future__ import annotations

import importlib.metadata
import sys

import pytest

from mansard.errors import MansardError
from mansard.hal import discovery, registry


def test_the_same_answers_as_the_standard_library():
    entries = importlib.metadata.entry_points(group=registry.GROUP)
    assert {entry.name for entry in entries} >= {"cpu", "null", "vulkan"}
    for entry in entries:
        assert discovery.find(registry.GROUP, entry.name) == entry.value


def test_the_first_folder_wins_and_other_sections_do_not_count(tmp_path, monkeypatch):
    for folder, module in (("a", "one"), ("b", "two")):
        place = tmp_path / folder / "plugin-1.0.dist-info"
        place.mkdir(parents=True)
        (place / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1.0\n")
        (place / "entry_points.txt").write_text(
            f"[some.other]\nnpu = wrong:X\n\n[mansard.drivers]\n# a comment = nothing\nnpu = {module}:D [x]\n"
        )
    monkeypatch.setattr(sys, "path", [str(tmp_path / "a"), str(tmp_path / "b"), str(tmp_path / "none")])
    assert discovery.find("mansard.drivers", "npu") == "one:D"
    assert discovery.find("some.other", "npu") == "wrong:X"
    assert discovery.find("mansard.drivers", "# a comment") is None
    assert discovery.find("mansard.drivers", "absent") is None


def test_a_broken_plug_in_is_not_hidden(tmp_path, monkeypatch):
    place = tmp_path / "broken-1.0.dist-info"
    place.mkdir()
    (place / "entry_points.txt").write_text(
        "[mansard.drivers]\nbroken = no_such_module_at_all:D\nforeign = json:dumps\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(MansardError, match=r"driver plug-in 'broken'.*failed to load"):
        registry.driver("broken")
    with pytest.raises(MansardError, match=r"driver plug-in 'foreign'.*not a mansard\.hal\.Driver"):
        registry.driver("foreign")
    listed = {info.driver: info for info in registry.devices()}
    assert "failed to load" in listed["broken"].reasons[0] and not listed["foreign"].supported
    assert listed["cpu"].supported  # whoever does not name the plug-in does without it


def test_one_driver_is_opened_without_the_others():
    assert registry.driver("absent") is None
    assert [info.driver for info in registry.devices("cpu")] == ["cpu"]
    assert registry.devices("absent") == []
