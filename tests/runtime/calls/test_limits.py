"""Options of calls that make no sense: an error that names them, before anything of the call is made."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from support.paths import TESTS
from support.plans.builder import X, bound, scaled

from mansard.errors import InputError
from mansard.runtime.calls.limits import MAX_SECONDS


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("priority", "high", "priority='high' is a str; it must be an int"),
        ("priority", 1.5, "priority=1.5 is a float; it must be an int"),
        ("priority", None, "priority=None is a NoneType; it must be an int"),
        ("priority", 2**31, "a priority must be in"),
        ("deadline", "1", "deadline='1' is a str; it must be a number of seconds"),
        ("deadline", math.nan, "deadline=nan is not a number of seconds"),
        ("timeout", True, "timeout=True is a bool; it must be a number of seconds"),
        ("timeout", math.nan, "timeout=nan is not a number of seconds"),
    ],
)
def test_options_of_a_call_are_checked(make, option, value, said):
    model = bound(scaled("cpu"), make())
    with pytest.raises(InputError, match=said):
        model(X, **{option: value})
    if option != "timeout":
        for call in (model.run_async, model.run_in_batches_async):
            with pytest.raises(InputError, match=said):
                asyncio.run(call(X, **{option: value}))
        with pytest.raises(InputError, match=said):
            model.run_in_batches(X, **{option: value})
    assert model.stats.contexts == 0


@pytest.mark.parametrize("endless", [math.inf, 1e30, np.float32(np.inf)])
def test_limits_beyond_all_clocks_are_none(make, endless):
    model = bound(scaled("cpu"), make())
    expected = model(X)
    for options in ({"deadline": endless}, {"timeout": endless}, {"priority": np.int64(3)}):
        assert np.array_equal(model(X, **options), expected)
    assert np.array_equal(asyncio.run(model.run_async(X, deadline=endless)), expected)
    assert np.array_equal(model.run_in_batches(X, deadline=endless), expected)
    assert MAX_SECONDS < 2**31


@pytest.mark.parametrize("count", ["8", 2.0, True])
def test_counts_are_ints(make, count):
    said = f"={count!r} is a {type(count).__name__}; it must be an int"
    model = bound(scaled("cpu"), make())
    with pytest.raises(InputError, match=f"size{said}"):
        model.run_in_batches(X, size=count)
    with pytest.raises(InputError, match=f"requests{said}"):
        model.profile(X, requests=count)
    with pytest.raises(InputError, match=f"in_flight{said}"):
        model.profile(X, requests=2, in_flight=count)
    for limit in ("max_in_flight", "max_queued"):
        with pytest.raises(InputError, match=f"{limit}{said}"):
            bound(scaled("cpu"), make(), **{limit: count})


@pytest.mark.threads_after_fork
def test_a_forked_process_awaits_models_of_its_own():
    """The thread that tells of completions does not exist in the child."""
    code = """
        import asyncio, os, sys
        sys.path.insert(0, sys.argv[1])
        from support.fake_device import FakeDevice
        from support.plans.builder import X, bound, scaled
        def calls():
            model = bound(scaled("cpu"), FakeDevice())
            return (asyncio.run(model.run_async(X)) == model(X)).all() and model.run_in_batches(X).shape
        assert calls()
        child = os.fork()
        if child == 0:
            os._exit(5 if calls() else 6)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), str(TESTS)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.stdout.strip() == "5", run.stderr
