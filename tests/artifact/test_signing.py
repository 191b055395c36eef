"""Signatures: who made a file, and that nothing of it was changed since."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import stat
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.command_line import invoke, json_of
from support.plans.artifact import resources_for, two_device_plan

import mansard
from mansard.artifact.container import Container, Signature
from mansard.artifact.resources import WEIGHTS_ENTRY, read_artifact, write_artifact
from mansard.artifact.signing import generate_key, sign_artifact
from mansard.errors import ArtifactError, SignatureError


@pytest.fixture
def artifact(tmp_path):
    plan = two_device_plan()
    path = tmp_path / "m.mansard"
    write_artifact(path, plan, resources_for(plan))
    return path


@pytest.fixture
def keys(tmp_path):
    """Two key pairs: (private, public, text) each."""
    return [generate_key(tmp_path / f"{name}.pem") for name in ("ours", "theirs")]


@pytest.fixture
def signed(artifact, keys):
    sign_artifact(artifact, keys[0][0])
    return artifact


def test_a_signed_file_loads_with_its_key_in_every_form(signed, keys):
    _, public, text = keys[0]
    assert re.fullmatch("ed25519:[0-9a-f]{64}", text)
    for key in (public, str(public), os.fsencode(public).decode(), text, public.read_bytes()):
        plan, resources = read_artifact(signed, trusted_keys=[key])
        assert plan == two_device_plan()
        assert resources.load(plan.weights[0]).size == 24
    assert read_artifact(signed, trusted_keys=(keys[1][1], public), copy=True)[0] == plan
    assert read_artifact(signed)[0] == plan, "without keys to trust it is a file like any other"
    with zipfile.ZipFile(signed) as archive:
        assert archive.testzip() is None


def test_unsigned_files_and_other_keys_are_refused(artifact, signed, keys, tmp_path):
    (_, ours, our_text), (_, theirs, their_text) = keys
    plain = tmp_path / "plain"
    write_artifact(plain, two_device_plan(), resources_for(two_device_plan()))
    with pytest.raises(SignatureError, match=f"is not signed; trusted_keys accepts {our_text} only"):
        read_artifact(plain, trusted_keys=[ours])
    with pytest.raises(SignatureError, match=f"signed by {our_text}, which is not trusted.*{their_text}"):
        read_artifact(signed, trusted_keys=[theirs])
    with pytest.raises(mansard.SignatureError):
        mansard.load(signed, trusted_keys=[theirs])
    with pytest.raises(ArtifactError, match="verify='code' would leave weights unchecked"):
        read_artifact(signed, verify="code", trusted_keys=[ours])


def test_several_keys_can_sign(signed, keys):
    sign_artifact(signed, keys[1][0])
    sign_artifact(signed, keys[0][0])  # again: takes the place of the first
    for _, public, _ in keys:
        read_artifact(signed, trusted_keys=[public])
    assert len(Container(signed).signatures) == 2


def test_a_signature_of_another_file_does_not_count(signed, keys, tmp_path):
    """Moved signatures, and a manifest written anew around altered content."""
    other = tmp_path / "other"
    plan = two_device_plan()
    write_artifact(other, dataclasses.replace(plan, name="another"), resources_for(plan))
    head, tail = Container(other).with_signatures(Container(signed).signatures)
    other.write_bytes(head.tobytes() + tail)
    read_artifact(other)
    with pytest.raises(SignatureError, match="was altered: it does not match its signature by ed25519:"):
        read_artifact(other, trusted_keys=[keys[0][1]])
    wrong = Signature(bytes.fromhex(keys[0][2].partition(":")[2]), bytes(64))
    head, tail = Container(signed).with_signatures([wrong])
    signed.write_bytes(head.tobytes() + tail)
    with pytest.raises(SignatureError, match="does not match its signature"):
        read_artifact(signed, trusted_keys=[keys[0][1]])


def test_altered_weights_of_a_signed_file_are_refused(signed, keys):
    opened = Container(signed)
    data = bytearray(signed.read_bytes())
    entry = opened.entry(WEIGHTS_ENTRY)
    data[entry.ctypes.data - opened.data.ctypes.data + entry.size - 4096] ^= 1
    signed.write_bytes(data)
    with pytest.raises(ArtifactError, match=r"'weights\.safetensors' does not match its hash"):
        read_artifact(signed, trusted_keys=[keys[0][1]])
    with pytest.raises(ArtifactError, match="does not match its hash"):
        sign_artifact(signed, keys[0][0])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_change_of_a_signed_file_goes_through(signed, keys, data):
    """Whatever bit is flipped, what is loaded is what was signed."""
    good = signed.read_bytes()
    position = data.draw(
        st.one_of(st.integers(0, len(good) - 1), st.integers(len(good) - 1200, len(good) - 1))
    )
    bad = bytearray(good)
    bad[position] ^= 1 << data.draw(st.integers(0, 7))
    damaged = signed.with_name("damaged")
    damaged.write_bytes(bad)
    try:
        plan, resources = read_artifact(damaged, trusted_keys=[keys[0][1]])
    except ArtifactError:
        return
    original = resources_for(plan)
    assert plan == two_device_plan()
    assert all(resources.load(s).tobytes() == original.load(s).tobytes() for s in plan.weights)


@pytest.mark.parametrize(
    ("trusted", "message"),
    [
        ([], "trusted_keys is empty"),
        ("release.pub", "it takes a list of public keys"),
        (3, "it takes a list of public keys"),
        ([None], "not the path of a file"),
        (["missing.pub"], "cannot be read: No such file"),
        (["ed25519:abc"], "cannot be read"),
        ([b"rubbish"], "holds no public key in PEM form"),
        (["\0"], "NUL"),
    ],
)
def test_odd_keys_are_explained(signed, trusted, message):
    with pytest.raises(ArtifactError, match=message):
        read_artifact(signed, trusted_keys=trusted)


def test_keys_of_other_kinds_are_refused(artifact, keys, tmp_path):
    private, public, _ = keys[0]
    with pytest.raises(SignatureError, match="holds no private key"):
        sign_artifact(artifact, public)
    with pytest.raises(SignatureError, match="holds no public key"):
        read_artifact(artifact, trusted_keys=[private])
    for kind in (["-algorithm", "x25519"], ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]):
        other = tmp_path / "other.pem"
        subprocess.run(["openssl", "genpkey", *kind, "-out", other], check=True, capture_output=True)
        with pytest.raises(SignatureError, match="is not an Ed25519 key"):
            sign_artifact(artifact, other)
    locked = tmp_path / "locked.pem"
    command = ["openssl", "pkey", "-in", private, "-aes256", "-passout", "pass:x", "-out", locked]
    subprocess.run(command, check=True, capture_output=True)
    with pytest.raises(SignatureError, match="is encrypted; decrypt it first: openssl pkey"):
        sign_artifact(artifact, locked)


def test_keys_of_openssl_serve_as_well(artifact, tmp_path):
    private, public = tmp_path / "k.pem", tmp_path / "k.pub"
    for command in (
        ["openssl", "genpkey", "-algorithm", "ed25519", "-out", private],
        ["openssl", "pkey", "-in", private, "-pubout", "-out", public],
    ):
        subprocess.run(command, check=True, capture_output=True)
    sign_artifact(artifact, private)
    assert read_artifact(artifact, trusted_keys=[public])[0] == two_device_plan()


def test_the_private_key_is_its_owner_s(keys, tmp_path):
    private, public, _ = keys[0]
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert b"PRIVATE" not in public.read_bytes()
    for name in ("ours.pem", "ours.other"):
        with pytest.raises(SignatureError, match="a key is not overwritten"):
            generate_key(tmp_path / name)


def test_a_failed_signing_leaves_the_file(artifact, keys, tmp_path):
    before = artifact.read_bytes()
    with pytest.raises(ArtifactError, match="could not be written: No such file"):
        sign_artifact(artifact, keys[0][0], tmp_path / "no" / "such")
    with pytest.raises(ArtifactError, match="could not be written: it is a folder"):
        sign_artifact(artifact, keys[0][0], tmp_path)
    assert artifact.read_bytes() == before


def test_without_the_extra_the_error_names_it(signed, keys):
    script = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from mansard.artifact.resources import read_artifact\n"
        "from mansard.errors import SignatureError\n"
        f"read_artifact({str(signed)!r})\n"
        f"try: read_artifact({str(signed)!r}, trusted_keys=[{keys[0][2]!r}])\n"
        "except SignatureError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "pip install 'mansard[sign]'" in done.stdout


def test_the_commands(tmp_path):
    import torch

    layer, x = torch.nn.Linear(4, 8), torch.ones(2, 4)
    path, copy = tmp_path / "m.mansard", tmp_path / "signed.mansard"
    with mansard.compile(layer, (x,), devices="cpu") as model:
        model.save(path)
    made = json_of("keygen", tmp_path / "k.pem")
    assert made["private"] == str(tmp_path / "k.pem")
    assert json_of("sign", path, "--key", made["private"], "-o", copy) == {
        "artifact": str(copy),
        "key": made["key"],
    }
    arguments = ["--input", "2x4xf32=1", "--trusted-key"]
    refused = invoke("run", path, *arguments, made["public"])
    assert refused.exit_code == 1
    assert refused.stderr.startswith("mansard: ")
    assert "is not signed" in refused.stderr
    for key in (made["public"], made["key"]):
        values = json_of("run", copy, *arguments, key)["outputs"][0]["values"]
        assert np.allclose(values, layer(x).detach().numpy(), atol=1e-5)
    for command in (
        ["bench", "--runs", "1"],
        ["trace", "-o", tmp_path / "t.json"],
        ["tune", "--budget", "1s"],
    ):
        again = tmp_path / "again.mansard"
        shutil.copy(path, again)
        name, *options = command
        assert "is not signed" in invoke(name, again, *options, "--trusted-key", made["public"]).stderr
        shutil.copy(copy, again)
        result = invoke(name, again, *options, "--trusted-key", made["public"])
        assert result.exit_code == 0, result.stderr
