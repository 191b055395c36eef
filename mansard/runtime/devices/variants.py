"""Selects the variant of a plan that runs on the devices present."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mansard.errors import TargetMismatchError
from mansard.hal.device import DeviceInfo
from mansard.hal.registry import devices as present_devices
from mansard.plan.plan import DeviceProgram, Plan
from mansard.runtime.devices.binding import DeviceChoice, Devices, assign_devices


@dataclass(frozen=True)
class VariantCheck:
    """A variant, the target that distinguishes it, and why it cannot run (empty: it can)."""

    plan: Plan
    target: str
    refusal: str
    made_for: str = ""
    """The name of the device present that the variant was compiled for; empty for none or without a name."""


def choose_variant(plan: Plan, devices: Devices = None) -> Plan:
    """The best variant of a plan that the devices can run; the plan itself when it has no variants.

    ``devices`` are as for `bind`. Raises TargetMismatchError naming what each variant requires and the
    devices lack.
    """
    if not plan.variants:
        return plan
    checks = check_variants(plan, devices)
    best = best_variant(checks)
    if best is not None:
        return best.plan
    raise TargetMismatchError(
        "no variant of the model runs here: " + "; ".join(f"{v.target}: {v.refusal}" for v in checks)
    )


def best_variant(checks: Sequence[VariantCheck]) -> VariantCheck | None:
    """A variant that can run: one compiled for a device present, else the first."""
    runnable = [check for check in checks if not check.refusal]
    return next((check for check in runnable if check.made_for), next(iter(runnable), None))


def check_variants(plan: Plan, devices: Devices = None) -> list[VariantCheck]:
    """The variants of a plan, the best first, and whether each can run."""
    plans = plan.with_variants()
    chosen = assign_devices(plan, devices)
    varying = [i for i in range(len(plan.devices)) if len({p.devices[i].target for p in plans}) > 1]
    infos = {i: _infos(plan.devices[i], chosen.get(plan.devices[i].name)) for i in varying}
    for i in varying:
        # A model is bound to the first device that runs any variant, whatever fits the later ones.
        capable = [info for info in infos[i] if any(not _lacks(p.devices[i], info) for p in plans)]
        infos[i] = capable[:1] or infos[i]
    checks = []
    for variant in plans:
        slots = [(variant.devices[i], infos[i]) for i in varying]
        reasons = [_refusal(slot, present) for slot, present in slots]
        products = [info.name for slot, present in slots for info in present if _names_product(slot, info)]
        target = " and ".join(slot.target for slot, _ in slots)
        checks.append(VariantCheck(variant, target, "; ".join(filter(None, reasons)), ", ".join(products)))
    return checks


def _names_product(slot: DeviceProgram, info: DeviceInfo) -> bool:
    return any(map(info.is_product, slot.product_names))


def _infos(slot: DeviceProgram, choice: DeviceChoice | None) -> list[DeviceInfo]:
    if choice is not None and not isinstance(choice, str):
        return [choice.info]
    infos = [info for info in present_devices() if info.driver == slot.driver and info.supported]
    named = [info for info in infos if info.id == choice]
    return named or infos


def _refusal(slot: DeviceProgram, infos: Sequence[DeviceInfo]) -> str:
    """Why none of the devices can run the slot's code; empty when one can."""
    reasons = [f"{info.id} ({info.name}) {_lacks(slot, info)}" for info in infos if _lacks(slot, info)]
    if len(reasons) < len(infos):
        return ""
    return ", ".join(reasons) or f"no usable device of driver {slot.driver!r}"


def _lacks(slot: DeviceProgram, info: DeviceInfo) -> str:
    kind = info.target.partition("+")[0]
    for ref in slot.executables:
        if ref.target.partition("+")[0] != kind:
            return f"is {kind}, not {ref.target.partition('+')[0]}"
    needed = {requirement for ref in slot.executables for requirement in ref.requires}
    missing = sorted(requirement for requirement in needed if not _has(info, requirement))
    return f"lacks {', '.join(missing)}" if missing else ""


def _has(info: DeviceInfo, requirement: str) -> bool:
    """Whether a device meets a requirement: a feature, or a limit such as ``shared_memory>=16384``."""
    name, is_limit, minimum = requirement.partition(">=")
    if is_limit:
        return info.limits.get(name.strip(), 0) >= int(minimum)
    return info.features.get(name, False)
