"""`mansard.load` and `mansard.devices`."""

from __future__ import annotations

import os
from collections.abc import Sequence

from mansard.api.model import Model
from mansard.artifact.resources import Verify, read_artifact
from mansard.artifact.signing import Key
from mansard.hal import DeviceInfo
from mansard.hal import registry as _registry
from mansard.hal.native import guarded
from mansard.runtime.devices.binding import Devices
from mansard.runtime.session import MAX_IN_FLIGHT, MAX_QUEUED


def load(
    path: str | os.PathLike[str],
    devices: Devices = None,
    *,
    verify: Verify | None = None,
    copy: bool = False,
    trusted_keys: Sequence[Key] | None = None,
    max_in_flight: int = MAX_IN_FLIGHT,
    max_queued: int | None = MAX_QUEUED,
) -> Model:
    """Open a model that `Model.save` or ``mansard compile`` wrote, and bind it to devices.

    ``devices`` assigns devices to the model's device slots: names such as ``["vulkan:1"]``, each for the
    slot of its driver, or a mapping ``{"vulkan": "vulkan:1"}``; slots that are not named get the first
    device that can run their code.
    Plan and code are always checked against their hashes. Weights are mapped from the file and paged in
    as kernels read them, so their hashes are checked on request only: ``verify="full"`` (or True). While a
    mapped model is open its file must not be written to or truncated: results would be wrong, or the process
    would be ended by SIGBUS. Replacing it by renaming another file over it, as `Model.save` and package
    managers do, and removing it are safe. ``copy=True`` reads all of it into memory first, after which it may
    be written to as well (docs/files.md).
    A file is a program: its kernels run in this process. ``trusted_keys`` are public keys (paths of PEM
    files, their content, or ``"ed25519:…"``), one of which must have signed it (``mansard sign``);
    everything, weights included, is then checked against the hashes that the signature covers.
    ``max_in_flight`` bounds how many calls run at a time, ``max_queued`` (None: unbounded) how many others
    may wait; one more raises QueueFullError.

    Raises ArtifactError for a file that is truncated, altered, foreign or too new, before anything of
    it is used, SignatureError for one that no trusted key signed, and TargetMismatchError naming target and
    devices present when no device fits.
    """
    plan, resources = read_artifact(path, verify, copy=copy, trusted_keys=trusted_keys)
    model = Model(plan, resources, devices, max_in_flight=max_in_flight, max_queued=max_queued)
    guarded(_close, Model.bind, model)
    return model


def _close(model: Model, _: BaseException) -> None:
    model.close()


def devices() -> list[DeviceInfo]:
    """Every device of every installed driver; unsupported ones are listed with the reasons."""
    return _registry.devices()
