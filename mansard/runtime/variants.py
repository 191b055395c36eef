"""Which variant of a plan runs on the devices present."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mansard.artifact.plan import DevicePlan, Plan
from mansard.errors import TargetMismatchError
from mansard.hal.device import DeviceInfo
from mansard.hal.registry import devices as present_devices
from mansard.runtime.binding import DeviceChoice, Devices, choices


@dataclass(frozen=True)
class Verdict:
    """A variant, the target that tells it from the others, and why it cannot run (empty: it can)."""

    plan: Plan
    target: str
    refusal: str


def choose(plan: Plan, devices: Devices = None) -> Plan:
    """The best variant of a plan that the devices can run; the plan itself when it has no variants.

    ``devices`` are as for `bind`. Raises TargetMismatchError naming what each variant needs and the
    devices lack.
    """
    if not plan.variants:
        return plan
    found = verdicts(plan, devices)
    for verdict in found:
        if not verdict.refusal:
            return verdict.plan
    raise TargetMismatchError(
        "no variant of the model runs here: " + "; ".join(f"{v.target}: {v.refusal}" for v in found)
    )


def verdicts(plan: Plan, devices: Devices = None) -> list[Verdict]:
    """Each variant of a plan, the best first, and whether it can run."""
    plans = plan.with_variants()
    chosen = choices(plan, devices)
    varying = [i for i in range(len(plan.devices)) if len({p.devices[i].target for p in plans}) > 1]
    found = []
    for one in plans:
        slots = [one.devices[i] for i in varying]
        reasons = [_refusal(slot, _infos(slot, chosen.get(slot.name))) for slot in slots]
        found.append(Verdict(one, " and ".join(s.target for s in slots), "; ".join(filter(None, reasons))))
    return found


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
    needed = {feature for ref in slot.executables for feature in ref.requires}
    missing = sorted(feature for feature in needed if not info.features.get(feature, False))
    return f"lacks {', '.join(missing)}" if missing else ""
