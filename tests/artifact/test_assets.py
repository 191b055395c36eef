"""Assets: files that travel with a model in its artifact."""

import pytest
from support.plans.artifact import resources_for, two_device_plan

import mansard
from mansard.artifact.resources import read_artifact, write_artifact
from mansard.errors import ArtifactError
from mansard.tuning.rebuild import ChangedResources

LABELS = b"cat\ndog\n"


@pytest.fixture
def path(tmp_path):
    plan = two_device_plan()
    write_artifact(tmp_path / "m", plan, resources_for(plan), assets={"labels.txt": LABELS, "a/b": b""})
    return tmp_path / "m"


def test_assets_are_read_back(path):
    _, resources = read_artifact(path)
    assert sorted(resources.assets) == ["a/b", "labels.txt"]
    assert resources.asset("labels.txt") == LABELS and resources.asset("a/b") == b""
    with pytest.raises(ArtifactError, match=r"no asset 'labels'"):
        resources.asset("labels")
    resources.close()
    with pytest.raises(ArtifactError, match="closed"):
        resources.asset("labels.txt")


def test_what_is_saved_again_keeps_its_assets(path, tmp_path):
    plan, resources = read_artifact(path)
    write_artifact(tmp_path / "again", plan, resources, assets={"labels.txt": b"bird", "new": b"1"})
    _, again = read_artifact(tmp_path / "again")
    assert {name: again.asset(name) for name in again.assets} == {
        "labels.txt": b"bird",
        "a/b": b"",
        "new": b"1",
    }


def test_a_tuned_model_keeps_its_assets(path, tmp_path):
    plan, resources = read_artifact(path)
    write_artifact(tmp_path / "tuned", plan, ChangedResources(resources, b""))
    assert read_artifact(tmp_path / "tuned")[1].asset("labels.txt") == LABELS


def test_a_damaged_asset_is_found_when_it_is_read(path):
    path.write_bytes(path.read_bytes().replace(LABELS, LABELS.upper()))
    _, resources = read_artifact(path)
    with pytest.raises(ArtifactError, match=r"'assets/labels\.txt'"):
        resources.asset("labels.txt")
    assert resources.asset("a/b") == b""
    with pytest.raises(ArtifactError, match=r"'assets/labels\.txt'"):
        read_artifact(path, verify="full")


def test_a_model_names_its_assets(path, tmp_path):
    opened = mansard.Model(*read_artifact(path))
    assert sorted(opened.assets) == ["a/b", "labels.txt"] and opened.asset("labels.txt") == LABELS
    with pytest.raises(ArtifactError, match=r"no asset 'x'; its assets: .*labels\.txt"):
        opened.asset("x")
    opened.save(tmp_path / "again", assets={"note": b"1"})
    assert read_artifact(tmp_path / "again")[1].asset("note") == b"1"
    in_memory = mansard.Model(two_device_plan(), resources_for(two_device_plan()))
    assert list(in_memory.assets) == []
    with pytest.raises(ArtifactError, match="its assets: none"):
        in_memory.asset("x")


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../x", "a//b", "a/./b", "a\\b", "a\n", 7])
def test_names_are_relative_paths(path, tmp_path, name):
    with pytest.raises(ArtifactError, match=r"relative path.*'labels\.txt'"):
        mansard.Model(*read_artifact(path)).save(tmp_path / "no", assets={name: b""})
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(("assets", "reason"), [({"a": "text"}, "'a' is a str"), ([b"a"], "dict of bytes")])
def test_content_is_bytes_by_name(path, tmp_path, assets, reason):
    with pytest.raises(ArtifactError, match=reason):
        mansard.Model(*read_artifact(path)).save(tmp_path / "no", assets=assets)
