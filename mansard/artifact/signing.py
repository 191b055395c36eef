"""Signatures of artifacts: Ed25519 (RFC 8032) over the hash of the manifest, and so over every entry.

Signatures are part of the mark at the end of the file, one per key. Keys are PEM files, as ``mansard keygen``
and ``openssl genpkey -algorithm ed25519`` write them; in text a public key is ``ed25519:`` and 64 hexadecimal
digits.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from mansard.arguments import sequence
from mansard.artifact.container import Container, Signature
from mansard.artifact.mapped_file import as_path
from mansard.atomic_write import replacing
from mansard.errors import ArtifactError, SignatureError

Key = str | bytes | os.PathLike[str]
"""A public key: the path of a PEM file, its content (bytes), or ``ed25519:…``."""

_TEXT = re.compile(r"ed25519:([0-9a-f]{64})")
_KEY_BYTES = 1 << 16
_COPY_BYTES = 8 << 20  # as `mansard.artifact.writing`: large pages in the page cache


def generate_key(path: str | os.PathLike[str]) -> tuple[Path, Path, str]:
    """Write a new key pair: the private key to ``path``, readable by its owner alone, and the public one
    beside it with the suffix ``.pub``. Returns both paths and the public key as text.

    Raises SignatureError when one of the files exists or cannot be written.
    """
    ed25519, serialization = _cryptography("ed25519"), _serialization()
    private = as_path(path)
    if not private.name:
        raise SignatureError(f"{private} is not the name of a file")
    public = private.with_suffix(".pub")
    for file in (private, public):
        if file.exists():
            raise SignatureError(f"{file} exists; a key is not overwritten")
    key = ed25519.Ed25519PrivateKey.generate()
    pem, raw = serialization.Encoding.PEM, serialization.Encoding.Raw
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    shown = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    try:
        for file, content, mode in ((private, secret, 0o600), (public, shown, 0o666)):
            with replacing(file, mode=mode, durable=True) as stream:
                stream.write(content)
    except OSError as error:
        raise SignatureError(f"{private} could not be written: {error.strerror or error}") from error
    return private, public, key_text(key.public_key().public_bytes(raw, serialization.PublicFormat.Raw))


def sign_artifact(
    path: str | os.PathLike[str], key: Key, output: str | os.PathLike[str] | None = None
) -> str:
    """Sign an artifact with a private key, in place or as ``output``; returns the public key as text.

    Every entry is checked against its hash first. Signatures of other keys stay. Raises ArtifactError for a
    damaged artifact, SignatureError for a key that cannot sign.
    """
    private = _private_key(key)
    container = Container(path)
    container.verify(container.names)
    raw, public = _serialization().Encoding.Raw, _serialization().PublicFormat.Raw
    signer = private.public_key().public_bytes(raw, public)
    signature = Signature(signer, private.sign(container.signed_text))
    others = [each for each in container.signatures if each.key != signer]
    target = container.path if output is None else as_path(output)
    head, tail = container.with_signatures([*others, signature])
    try:
        with replacing(target, durable=True) as stream:
            for start in range(0, head.size, _COPY_BYTES):
                stream.write(head[start : start + _COPY_BYTES].data)
            stream.write(tail)
            container.check_unchanged()
    except OSError as error:
        raise ArtifactError(f"{target} could not be written: {error.strerror or error}") from error
    return key_text(signer)


def check_signature(container: Container, trusted: Sequence[Key]) -> None:
    """Raise SignatureError unless one of the trusted keys signed the artifact's manifest."""
    keys = public_keys(trusted)
    if not container.signatures:
        raise SignatureError(f"{container.path} is not signed; trusted_keys accepts {_listed(keys)} only")
    known = [signature for signature in container.signatures if signature.key in keys]
    if not known:
        signers = _listed(signature.key for signature in container.signatures)
        raise SignatureError(
            f"{container.path} is signed by {signers}, which is not trusted; trusted_keys accepts "
            f"{_listed(keys)}"
        )
    if not any(_verifies(signature, container.signed_text) for signature in known):
        raise SignatureError(
            f"{container.path} was altered: it does not match its signature by "
            f"{_listed(signature.key for signature in known)}"
        )


def public_keys(trusted: Sequence[Key]) -> list[bytes]:
    """The raw bytes of public keys; raises SignatureError for what is none."""
    form = "a list of public keys, such as ['release.pub']"
    keys = [_public_key(key) for key in sequence("trusted_keys", trusted, SignatureError, form)]
    if not keys:
        raise SignatureError("trusted_keys is empty: no file could be loaded; give at least one public key")
    return keys


def key_text(key: bytes) -> str:
    """A public key as text."""
    return f"ed25519:{key.hex()}"


def _verifies(signature: Signature, text: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        key = _cryptography("ed25519").Ed25519PublicKey.from_public_bytes(signature.key)
        key.verify(signature.value, text)
    except (InvalidSignature, ValueError):
        return False
    return True


def _public_key(key: object) -> bytes:
    serialization = _serialization()
    if isinstance(key, str) and (match := _TEXT.fullmatch(key)):
        return bytes.fromhex(match[1])
    content, name = _pem(key)
    try:
        public: Any = serialization.load_pem_public_key(content)
    except Exception as error:  # whatever a library makes of a foreign file
        raise SignatureError(f"{name} holds no public key in PEM form (and is not 'ed25519:…')") from error
    if not isinstance(public, _cryptography("ed25519").Ed25519PublicKey):
        raise SignatureError(f"{name} is not an Ed25519 key")
    raw: bytes = public.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return raw


def _private_key(key: object) -> Any:
    serialization = _serialization()
    content, name = _pem(key)
    if b"ENCRYPTED" in content:
        raise SignatureError(f"{name} is encrypted; decrypt it first: openssl pkey -in KEY -out PLAIN")
    try:
        private: Any = serialization.load_pem_private_key(content, password=None)
    except Exception as error:  # whatever a library makes of a foreign file
        raise SignatureError(f"{name} holds no private key in PEM form; mansard keygen makes one") from error
    if not isinstance(private, _cryptography("ed25519").Ed25519PrivateKey):
        raise SignatureError(f"{name} is not an Ed25519 key; mansard keygen makes one")
    return private


def _pem(key: object) -> tuple[bytes, str]:
    """The content of a key and what to call it."""
    if isinstance(key, bytes):
        return key, "the key"
    path = as_path(key)
    try:
        with path.open("rb") as stream:  # a pipe will do: keys come from tools that keep them
            return stream.read(_KEY_BYTES), str(path)
    except OSError as error:
        raise SignatureError(f"the key {path} cannot be read: {error.strerror or error}") from error


def _listed(keys: Iterable[bytes]) -> str:
    return ", ".join(map(key_text, keys))


def _serialization() -> ModuleType:
    _cryptography("ed25519")
    from cryptography.hazmat.primitives import serialization

    return serialization


def _cryptography(name: str) -> ModuleType:
    """A module of asymmetric primitives, or an error that names the extra."""
    import importlib

    try:
        return importlib.import_module(f"cryptography.hazmat.primitives.asymmetric.{name}")
    except ImportError as error:
        raise SignatureError(
            "signatures need the package cryptography: pip install 'mansard[sign]'"
        ) from error
