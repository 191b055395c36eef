"""Binds the device slots of a plan to open devices, and loads the plan's code on them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mansard.arguments import sequence, shown
from mansard.artifact.resources import Resources
from mansard.errors import DeviceError, DeviceUnavailableError, TargetMismatchError
from mansard.hal import Device, DeviceInfo, EntryPoint, Executable, ExecutableSpec, MemoryKind, ProgramArea
from mansard.hal.executable import Build
from mansard.hal.registry import devices as present_devices
from mansard.hal.registry import open_device
from mansard.plan.plan import DeviceProgram, ExecutableRef, Plan
from mansard.plan.stores import Links

DeviceChoice = str | Device
Devices = Sequence[DeviceChoice] | Mapping[str, DeviceChoice] | None


@dataclass(frozen=True)
class BoundSlot:
    """A device slot of the plan, the device it is bound to, and its executables in plan order."""

    plan: DeviceProgram
    device: Device
    executables: tuple[Executable, ...]
    area: ProgramArea | None = None
    """The part of the device's memory in which the plan's swapped executables take turns."""
    owns_area: bool = False
    """Whether the area ends with this slot; else it is that of the model whose method the plan is."""

    @property
    def name(self) -> str:
        """The device's name, such as ``vulkan:1``."""
        return self.device.info.id

    def memory(self, kind: MemoryKind) -> str:
        """Where the device allocates memory of a kind, for the memory ledger."""
        capabilities = self.device.capabilities
        if not capabilities.unified_memory:
            return "device memory" if kind is MemoryKind.DEVICE else "host memory"
        return "host memory" if capabilities.late_binding else "host-visible device memory"

    def wait(self) -> None:
        """Return once all executables can run; raises DeviceError when the driver refuses one."""
        for executable in self.executables:
            executable.wait()

    @property
    def builds(self) -> tuple[Build, ...]:
        """What the driver compiled when the executables were loaded."""
        return tuple(build for executable in self.executables for build in executable.builds)


def bind(
    plan: Plan, resources: Resources, devices: Devices = None, shared: Sequence[BoundSlot] = ()
) -> list[BoundSlot]:
    """Bind every slot to a device and load the slot's code; ``shared`` are the slots of the model whose
    method the plan is: programs take turns in their areas.

    ``devices`` assigns devices to slots: a mapping by slot name, or names of devices (``["vulkan:1"]``), each
    for the slot of that name, else for one of its driver. Other slots are bound to the device of their own
    name, else to the first of their driver that can run the code, preferably one that no other slot has. Open
    `Device` objects are used as they are.
    Raises TargetMismatchError naming the target and the devices present, DeviceUnavailableError for a
    requested device that does not exist, cannot be used or has no slot.
    """
    chosen = assign_devices(plan, devices)
    taken = {_label(choice) for choice in chosen.values()}
    areas = {slot.device: slot.area for slot in shared if slot.area is not None}
    bound = []
    for slot in plan.devices:
        others = {_plain(other.name) for other in plan.devices if other is not slot}
        load = functools.partial(_load_all, slot, resources=resources, areas=areas)
        bound.append(_bind_slot(slot, load, chosen.get(slot.name), taken, others))
        taken.add(bound[-1].name)
    return bound


def when_idle(slots: Sequence[BoundSlot], release: Callable[[], None]) -> None:
    """Call ``release``, which frees memory, once no device has a call running that it has given up on."""
    for slot in slots:
        release = functools.partial(slot.device.when_idle, release)
    release()


def probe_links(slots: Sequence[BoundSlot]) -> Links:
    """Which slots share memory, probed with one small buffer of each that the others import."""
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


def assign_devices(plan: Plan, devices: Devices) -> dict[str, DeviceChoice]:
    """The requested devices by slot name; raises DeviceUnavailableError as `bind` does."""
    names = {slot.name: slot for slot in plan.devices}
    listed = ", ".join(names) or "none"
    if devices is None:
        return {}
    form = "a device such as 'vulkan:1', a sequence of them, or a mapping by device slot"
    if isinstance(devices, Mapping):
        for name in devices:
            if name not in names:
                raise DeviceUnavailableError(
                    f"the model has no device slot {shown(name)}; its slots: {listed}"
                )
        for choice in devices.values():
            _check_choice(choice, form)
        return dict(devices)
    if isinstance(devices, (str, Device)):
        devices = [devices]
    devices = sequence("devices", devices, DeviceUnavailableError, form)
    for choice in devices:
        _check_choice(choice, form)
    chosen: dict[str, DeviceChoice] = {}
    by_name = {_plain(slot.name): slot.name for slot in plan.devices}
    for device in sorted(devices, key=lambda device: _label(device) not in by_name):
        label = device if isinstance(device, str) else device.info.id
        driver = label.partition(":")[0]
        slots = [s for s in plan.devices if (s.driver == driver or s.name == label) and s.name not in chosen]
        slots.sort(key=lambda slot: _plain(slot.name) != _plain(label))
        if not slots:
            raise DeviceUnavailableError(
                f"the model was not compiled for {label!r} (or it is named twice); its device slots: {listed}"
            )
        chosen[slots[0].name] = device
    return chosen


def _check_choice(choice: object, form: str) -> None:
    if not isinstance(choice, (str, Device)):
        raise DeviceUnavailableError(
            f"devices: {shown(choice)} is a {type(choice).__name__}; it takes {form}"
        )


def _plain(name: str) -> str:
    """The canonical name of a device: the first of a driver has the driver's name."""
    return name.removesuffix(":0")


def _label(choice: DeviceChoice) -> str:
    return _plain(choice if isinstance(choice, str) else choice.info.id)


def _bind_slot(
    slot: DeviceProgram,
    load: Callable[[Device], BoundSlot],
    choice: DeviceChoice | None,
    taken: set[str],
    others: set[str],
) -> BoundSlot:
    """``load`` binds the slot to a device and loads its code there; ``taken`` are the devices bound to other
    slots, ``others`` the names of the other slots."""
    if choice is not None:
        device = open_device(choice) if isinstance(choice, str) else choice
        return load(device)

    def rank(info: DeviceInfo) -> tuple[bool, bool, bool]:
        return (info.id in taken, info.id != _plain(slot.name), info.id in others)

    candidates = sorted(present_devices(slot.driver), key=rank)
    reasons = []
    for info in candidates:
        if not info.supported:
            reasons.append(f"{info.id} ({info.name}): {'; '.join(info.reasons)}")
            continue
        try:
            return load(open_device(info.id))
        except (TargetMismatchError, DeviceUnavailableError) as error:
            reasons.append(f"{info.id} ({info.name}): {error}")
    if not candidates:
        present = ", ".join(f"{i.id} ({i.name})" for i in present_devices() if i.supported) or "no device"
        reasons.append(f"no device of driver {slot.driver!r}; present: {present}")
    raise TargetMismatchError(
        f"no present device can run the part for {slot.name!r} (target {slot.target}): " + " | ".join(reasons)
    )


def _load_all(
    slot: DeviceProgram, device: Device, resources: Resources, areas: Mapping[Device, ProgramArea]
) -> BoundSlot:
    area, owns_area = areas.get(device), False
    if slot.area_bytes and not device.capabilities.swaps_programs:
        raise TargetMismatchError(
            f"{len(slot.swapped)} programs of the model are to take turns in the device's memory, and "
            f"{device.info.id} does not swap programs; compile for its memory"
        )
    for ref in slot.executables:
        if ref.format not in device.capabilities.formats:
            raise TargetMismatchError(
                f"{ref.entry} is in format {ref.format!r}; the device loads "
                f"{', '.join(device.capabilities.formats)}"
            )
    loaded: dict[int, Executable] = {}
    try:
        if slot.area_bytes and area is None:
            area, owns_area = device.program_area(slot.area_bytes), True
        if area is not None:
            for number in slot.swapped:
                loaded[number] = device.load_swapped(_spec(slot.executables[number], resources), area)
        others = [number for number in range(len(slot.executables)) if number not in loaded]
        specs = [_spec(slot.executables[number], resources) for number in others]
        loaded.update(zip(others, device.load_all(specs), strict=True))
    except (DeviceError, TargetMismatchError):
        for executable in loaded.values():
            executable.close()
        if area is not None and owns_area:
            area.close()
        raise
    return BoundSlot(slot, device, tuple(loaded[n] for n in range(len(slot.executables))), area, owns_area)


def _spec(ref: ExecutableRef, resources: Resources) -> ExecutableSpec:
    entries = tuple(
        EntryPoint(name, bindings, params, workgroup, offset)
        for name, bindings, params, workgroup, offset in ref.kernels
    )
    return ExecutableSpec(ref.format, ref.target, resources.code(ref.entry), entries, ref.requires)
