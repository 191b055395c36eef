"""From the device slots of a plan to open devices with the plan's code loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mansard.artifact.resources import Resources
from mansard.errors import DeviceError, DeviceUnavailableError, TargetMismatchError
from mansard.hal import Device, DeviceInfo, EntryPoint, Executable, ExecutableSpec, MemoryKind
from mansard.hal.executable import Build
from mansard.hal.registry import devices as present_devices
from mansard.hal.registry import open_device
from mansard.plan.layout import Links
from mansard.plan.plan import DevicePlan, ExecutableRef, Plan

DeviceChoice = str | Device
Devices = Sequence[DeviceChoice] | Mapping[str, DeviceChoice] | None


@dataclass(frozen=True)
class BoundSlot:
    """A device slot of the plan, the device it runs on, and its executables in plan order."""

    plan: DevicePlan
    device: Device
    executables: tuple[Executable, ...]

    @property
    def name(self) -> str:
        """The device's name, such as ``vulkan:1``."""
        return self.device.info.id

    def memory(self, kind: MemoryKind) -> str:
        """Where memory lies that the device allocates, for the memory ledger."""
        capabilities = self.device.capabilities
        if not capabilities.unified_memory:
            return "device memory" if kind is MemoryKind.DEVICE else "host memory"
        return "host memory" if capabilities.late_binding else "host-visible device memory"

    @property
    def builds(self) -> tuple[Build, ...]:
        """What the driver compiled when the executables were loaded."""
        return tuple(build for executable in self.executables for build in executable.builds)


def bind(plan: Plan, resources: Resources, devices: Devices = None) -> list[BoundSlot]:
    """Find a device for every slot and load the slot's code.

    ``devices`` maps slots to devices: a mapping by slot name, or names of devices, each of which takes
    the slot of its name, else one of its driver (``["vulkan:1"]``). Slots that are not named get the device
    they are called after, else the first of their driver that can run the code, one that no other slot has
    where there are several. Open `Device` objects are taken as they are.
    Raises TargetMismatchError naming the target and what is present, DeviceUnavailableError for a
    device that is asked for but does not exist, cannot be used or has no slot.
    """
    chosen = choices(plan, devices)
    taken = {_label(choice) for choice in chosen.values()}
    bound = []
    for slot in plan.devices:
        others = {_plain(other.name) for other in plan.devices if other is not slot}
        bound.append(_bind_slot(slot, resources, chosen.get(slot.name), taken, others))
        taken.add(bound[-1].name)
    return bound


def probe_links(slots: Sequence[BoundSlot]) -> Links:
    """Which slots share memory, found by trying: one small buffer of each, imported by the others."""
    capabilities = [slot.device.capabilities for slot in slots]
    reach = []
    for owner in slots:
        row = [True] * len(slots)
        if len(slots) > 1:
            buffer = owner.device.allocate(4096, MemoryKind.SHARED, "probe")
            for index, other in enumerate(slots):
                if other.device is not owner.device:
                    imported = other.device.import_buffer(buffer, "probe")
                    row[index] = imported is not None
                    if imported is not None:
                        imported.close()
            buffer.close()
        reach.append(tuple(row))
    return Links(
        names=tuple(slot.name for slot in slots),
        unified=tuple(c.unified_memory for c in capabilities),
        late_binding=tuple(c.late_binding for c in capabilities),
        reach=tuple(reach),
        transfer_queue=tuple(c.transfer_queue for c in capabilities),
    )


def choices(plan: Plan, devices: Devices) -> dict[str, DeviceChoice]:
    """The devices asked for, by slot name; raises DeviceUnavailableError as `bind` does."""
    names = {slot.name: slot for slot in plan.devices}
    listed = ", ".join(names) or "none"
    if devices is None:
        return {}
    if isinstance(devices, Mapping):
        for name in devices:
            if name not in names:
                raise DeviceUnavailableError(f"the model has no device slot {name!r}; its slots: {listed}")
        return dict(devices)
    if isinstance(devices, str):
        devices = [devices]
    chosen: dict[str, DeviceChoice] = {}
    by_name = {_plain(slot.name): slot.name for slot in plan.devices}
    for device in sorted(devices, key=lambda device: _label(device) not in by_name):
        label = device if isinstance(device, str) else device.info.id
        driver = label.partition(":")[0]
        fits = [s for s in plan.devices if (s.driver == driver or s.name == label) and s.name not in chosen]
        fits.sort(key=lambda slot: _plain(slot.name) != _plain(label))
        if not fits:
            raise DeviceUnavailableError(
                f"the model was not compiled for {label!r} (or it is named twice); its device slots: {listed}"
            )
        chosen[fits[0].name] = device
    return chosen


def _plain(name: str) -> str:
    """The first device of a driver goes by the driver's name alone."""
    return name.removesuffix(":0")


def _label(choice: DeviceChoice) -> str:
    return _plain(choice if isinstance(choice, str) else choice.info.id)


def _bind_slot(
    slot: DevicePlan, resources: Resources, choice: DeviceChoice | None, taken: set[str], others: set[str]
) -> BoundSlot:
    """``taken`` are the devices of other slots, ``others`` the names of the other slots."""
    if choice is not None:
        device = open_device(choice) if isinstance(choice, str) else choice
        return BoundSlot(slot, device, _load_all(slot, device, resources))

    def rank(info: DeviceInfo) -> tuple[bool, bool, bool]:
        return (info.id in taken, info.id != _plain(slot.name), info.id in others)

    candidates = sorted(present_devices(slot.driver), key=rank)
    reasons = []
    for info in candidates:
        if not info.supported:
            reasons.append(f"{info.id} ({info.name}): {'; '.join(info.reasons)}")
            continue
        try:
            device = open_device(info.id)
            return BoundSlot(slot, device, _load_all(slot, device, resources))
        except (TargetMismatchError, DeviceUnavailableError) as error:
            reasons.append(f"{info.id} ({info.name}): {error}")
    if not candidates:
        found = ", ".join(f"{i.id} ({i.name})" for i in present_devices() if i.supported) or "no device"
        reasons.append(f"no device of driver {slot.driver!r}; present: {found}")
    raise TargetMismatchError(
        f"no present device can run the part for {slot.name!r} (target {slot.target}): " + " | ".join(reasons)
    )


def _load_all(slot: DevicePlan, device: Device, resources: Resources) -> tuple[Executable, ...]:
    loaded: list[Executable] = []
    try:
        for ref in slot.executables:
            if ref.format not in device.capabilities.formats:
                raise TargetMismatchError(
                    f"{ref.entry} is in format {ref.format!r}; the device loads "
                    f"{', '.join(device.capabilities.formats)}"
                )
            loaded.append(device.load(_spec(ref, resources)))
    except DeviceError:
        for executable in loaded:
            executable.close()
        raise
    return tuple(loaded)


def _spec(ref: ExecutableRef, resources: Resources) -> ExecutableSpec:
    entries = tuple(
        EntryPoint(name, bindings, params, workgroup, offset)
        for name, bindings, params, workgroup, offset in ref.kernels
    )
    return ExecutableSpec(ref.format, ref.target, resources.code(ref.entry), entries, ref.requires)
