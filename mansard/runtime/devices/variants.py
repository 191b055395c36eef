"""Which variant of a plan runs on the devices present, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mansard.errors import TargetMismatchError
from mansard.hal.device import DeviceInfo
from mansard.hal.registry import devices as present_devices
from mansard.plan.plan import DevicePlan, Plan
from mansard.runtime.devices.binding import DeviceChoice, Devices, choices


@dataclass(frozen=True)
class Verdict:
    """A variant, the target that tells it from the others, and why it cannot run (empty: it can)."""

    plan: Plan
    target: str
    refusal: str
    meant: str = ""
    """The device present that the target means, by its name; empty for none, or without a name."""


def choose(plan: Plan, devices: Devices = None) -> Plan:
    """The best variant of a plan that the devices can run; the plan itself when it has no variants.

    ``devices`` are as for `bind`. Raises TargetMismatchError naming what each variant needs and the
    devices lack.
    """
    if not plan.variants:
        return plan
    found = verdicts(plan, devices)
    best = chosen_of(found)
    if best is not None:
        return best.plan
    raise TargetMismatchError(
        "no variant of the model runs here: " + "; ".join(f"{v.target}: {v.refusal}" for v in found)
    )


def chosen_of(found: Sequence[Verdict]) -> Verdict | None:
    """The variant to take: one that is meant for a device present, else the first that runs."""
    running = [verdict for verdict in found if not verdict.refusal]
    return next((verdict for verdict in running if verdict.meant), next(iter(running), None))


def verdicts(plan: Plan, devices: Devices = None) -> list[Verdict]:
    """Each variant of a plan, the best first, and whether it can run."""
    plans = plan.with_variants()
    chosen = choices(plan, devices)
    varying = [i for i in range(len(plan.devices)) if len({p.devices[i].target for p in plans}) > 1]
    infos = {i: _infos(plan.devices[i], chosen.get(plan.devices[i].name)) for i in varying}
    for i in varying:
        # A model is bound to the first device that runs any variant: what fits later ones does not count.
        able = [info for info in infos[i] if any(not _lacks(p.devices[i], info) for p in plans)]
        infos[i] = able[:1] or infos[i]
    found = []
    for one in plans:
        slots = [(one.devices[i], infos[i]) for i in varying]
        reasons = [_refusal(slot, present) for slot, present in slots]
        meant = [info.name for slot, present in slots for info in present if _is_meant(slot, info)]
        target = " and ".join(slot.target for slot, _ in slots)
        found.append(Verdict(one, target, "; ".join(filter(None, reasons)), ", ".join(meant)))
    return found


def _is_meant(slot: DevicePlan, info: DeviceInfo) -> bool:
    return any(map(info.is_product, slot.made_for))


def _infos(slot: DevicePlan, choice: DeviceChoice | None) -> list[DeviceInfo]:
    if choice is not None and not isinstance(choice, str):
        return [choice.info]
    infos = [info for info in present_devices() if info.driver == slot.driver and info.supported]
    named = [info for info in infos if info.id == choice]
    return named or infos


def _refusal(slot: DevicePlan, infos: Sequence[DeviceInfo]) -> str:
    """Why none of the devices can run the slot's code; empty when one can."""
    reasons = [f"{info.id} ({info.name}) {_lacks(slot, info)}" for info in infos if _lacks(slot, info)]
    if len(reasons) < len(infos):
        return ""
    return ", ".join(reasons) or f"no usable device of driver {slot.driver!r}"


def _lacks(slot: DevicePlan, info: DeviceInfo) -> str:
    kind = info.target.partition("+")[0]
    for ref in slot.executables:
        if ref.target.partition("+")[0] != kind:
            return f"is {kind}, not {ref.target.partition('+')[0]}"
    needed = {requirement for ref in slot.executables for requirement in ref.requires}
    missing = sorted(requirement for requirement in needed if not _has(info, requirement))
    return f"lacks {', '.join(missing)}" if missing else ""


def _has(info: DeviceInfo, requirement: str) -> bool:
    """Whether a device meets a requirement: a feature, or a limit as ``shared_memory>=16384``."""
    name, limit, least = requirement.partition(">=")
    if limit:
        return info.limits.get(name.strip(), 0) >= int(least)
    return info.features.get(name, False)
