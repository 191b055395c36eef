"""A worker's functions for a device: programs are factors, or the name of a fault."""

import os
import time


def load(code):
    text = bytes(code).decode()
    return text if text in ("hang", "die", "slow") else int(text)


def run(factor, inputs, params):
    if factor == "hang":
        time.sleep(600)
    if factor == "die":
        os.abort()
    if factor == "slow":
        time.sleep(0.2)
        return [inputs[0]]
    assert inputs[0].size == params[0]
    return [inputs[0] * factor]
