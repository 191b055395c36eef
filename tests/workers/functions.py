"""What the worker of the tests runs."""

import ctypes
import os
import sys
import time

CALLS = []


def double(array):
    return array * 2


def echo(value):
    return value


def process():
    return os.getpid()


def modules():
    return sorted(name for name in sys.modules if name.startswith(("mansard", "torch")))


def fail(text):
    raise ValueError(text)


def leave(code):
    sys.exit(code)


def crash():
    ctypes.string_at(0)


def abort(text):
    print(text, file=sys.stderr, flush=True)
    os.abort()


def sleep(seconds):
    print("before the nap", flush=True)
    time.sleep(seconds)


def counter(start):
    return [start]


def count(numbers, step):
    numbers.append(numbers[-1] + step)
    return numbers[-1]


def kept(numbers):
    return len(numbers)
