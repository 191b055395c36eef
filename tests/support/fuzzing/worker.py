"""Runs rounds of properties and answers with what failed: the child of `support.fuzzing.campaign`.

Reads ``PROPERTY SEED DEVICES`` lines, answers with a line of JSON each.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from traceback import format_exc
from typing import Any

from support.fuzzing.case import Disagreement, Refusal
from support.fuzzing.properties import run_round, sweep
from support.fuzzing.reproducer import source

SWEEP = "sweep"


def play(name: str, number: int, devices: tuple[str, ...]) -> dict[str, Any]:
    """One round: its failures with reproducers, refusals, and the number of cases."""
    failures, refusals, count = [], [], 0

    def begin(_case: Any) -> None:
        nonlocal count
        count += 1

    try:
        if name == SWEEP:
            for result in sweep(number, devices):
                if isinstance(result, Refusal):
                    refusals.append(str(result))
                else:
                    failures.append(result)
        else:
            refusals = run_round(name, number, devices, begin=begin)
    except Disagreement as failure:
        failures.append(failure)
    except Exception as error:  # of the generators themselves: the run goes on, and says so
        where = "+".join(devices)
        failures.append(
            Disagreement(f"{name}: {where}: {type(error).__name__} of a generator", format_exc()[-2000:])
        )
    return {
        "outcome": "failed" if failures else "passed",
        "cases": max(count, 1),
        "refusals": sorted(set(refusals)),
        "failures": [
            {
                "signature": f.signature,
                "detail": f.detail,
                "source": source(f, name=name, number=number, devices=devices),
            }
            for f in failures
        ],
    }


def main() -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        name, number, devices = line.split()
        print(json.dumps(play(name, int(number), tuple(devices.split("+")))), file=answers, flush=True)


if __name__ == "__main__":
    main()
