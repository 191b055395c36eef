"""Calibration of devices for the cost model: the figures of each, and the links between them.

All figures are the best of many runs, except handoffs, which are medians: their duration varies inherently.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from mansard.calibration import links
from mansard.calibration.call_costs import CallCosts, call_costs
from mansard.calibration.device_figures import Calibration, DeviceBench
from mansard.errors import CompileError, DeviceError
from mansard.hal import Device, registry
from mansard.targets.calibrated import keep
from mansard.targets.profile import LinkProfile

Progress = Callable[[str, int, int], None]
"""Called with (current measurement, completed steps, total steps)."""


def calibrate(
    names: Sequence[str], budget: float = 5.0, progress: Progress | None = None, *, store: bool = True
) -> list[Calibration]:
    """Measure devices of this machine, and the links between all of them, for ``budget`` seconds per device.

    With ``store`` the profiles are stored in the cache, and placement uses them from then on. Simulated
    devices are skipped: they run by their profile. Raises DeviceUnavailableError for a device that is not
    present, DeviceError if all are simulated.
    """
    opened = [registry.open_device(name) for name in names]
    devices = [device for device in opened if not device.info.is_stand_in]
    if opened and not devices:
        shown = ", ".join(f"{device.info.id} ({device.info.name})" for device in opened)
        raise DeviceError(
            f"simulated devices have nothing that could be measured, their profile is their model: {shown}"
        )
    steps = (*(d.info.id for d in devices), "links")
    calibrations = []
    for number, device in enumerate(devices):
        if progress:
            progress(steps[number], number, len(steps))
        calibrations.append(DeviceBench(device, budget).run())
    if progress:
        progress("links", len(devices), len(steps))
    calibrations = with_links(devices, calibrations)
    if progress:
        progress("done", len(steps), len(steps))
    for result in calibrations if store else ():
        keep(result.device, result.profile)
    return calibrations


def with_links(devices: Sequence[Device], calibrations: Sequence[Calibration]) -> list[Calibration]:
    """The calibrations with measured links between the devices and to the host."""
    host_links = [links.host_links(device) for device in devices]
    result = []
    for a, calibration in enumerate(calibrations):
        unified = devices[a].capabilities.unified_memory
        costs = _call_costs(calibration, devices[a])
        links_of_device = {"host": replace(host_links[a].to_host, host_copies=costs.outputs)}
        for b, other in enumerate(devices):
            if a == b:
                continue
            handoff = links.handoff(devices[a], other)
            copied = [
                link
                for device, link in ((devices[a], host_links[a].to_host), (other, host_links[b].to_device))
                if not device.capabilities.unified_memory
            ] or [host_links[b].to_device]
            rate = 1 / sum(1 / link.bytes_per_second for link in copied)
            links_of_device[other.info.name] = LinkProfile(
                rate, handoff, sum(link.copy_seconds for link in copied)
            )
        handoffs = [link.handoff_seconds for name, link in links_of_device.items() if name != "host"]
        to_others = max(handoffs, default=host_links[a].to_host.handoff_seconds)
        link = replace(host_links[a].to_device, handoff_seconds=to_others, host_copies=costs.inputs)
        # The rest of a small call: copies of its input and output, and the notification of the waiting
        # thread.
        known = host_links[a].to_host.handoff_seconds
        known += 0.0 if unified else link.copy_seconds + host_links[a].to_host.copy_seconds
        start = max(0.0, costs.minimum - known)
        profile = replace(calibration.profile, link=link, links=links_of_device, start=start)
        result.append(replace(calibration, profile=profile))
    return result


def _call_costs(calibration: Calibration, device: Device) -> CallCosts:
    """The overhead of calls; zero if it cannot be measured."""
    try:
        return call_costs(device)
    except (CompileError, DeviceError) as error:
        calibration.missing["start"] = str(error)
        return CallCosts(0.0, (), ())
