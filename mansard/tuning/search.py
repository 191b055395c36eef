"""The search for the best schedule parameters of one kernel."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Set
from concurrent.futures import ThreadPoolExecutor

from mansard.codegen.backend import CompiledDispatch
from mansard.codegen.parameters import Parameters
from mansard.compiler.kernels import KernelCompiler, workers
from mansard.compiler.tuned import Tuned
from mansard.errors import CodegenError
from mansard.ir.dispatch import Dispatch
from mansard.tuning.timing import Stopwatch

MARGIN = 0.98
"""A candidate replaces the default when it takes less than this fraction of its time."""
_CLOSE = 1.1
"""Candidates within this factor of the best are included in the final comparison."""
_FIRST_ROUNDS, _LAST_ROUNDS = 5, 25
_BATCH_NS = 200_000_000
"""The desired maximum time of one submission."""


class Search:
    """Searches the candidates of one dispatch. ``key`` is its `dispatch_key`."""

    def __init__(self, compiler: KernelCompiler, dispatch: Dispatch, key: str, stopwatch: Stopwatch) -> None:
        self._compiler, self._dispatch, self._key, self._stopwatch = compiler, dispatch, key, stopwatch
        self.candidates: Sequence[Parameters] = compiler.backend.candidates(dispatch, compiler.target)
        self._best_of: dict[CompiledDispatch, int] = {}
        self._default: CompiledDispatch | None = None

    def default_ns(self) -> int:
        """The time of the kernel with default parameters."""
        if self._default is None:
            self._default = self._compiler.compile(self._dispatch, self._key)
            self._run([self._default], _FIRST_ROUNDS)
        return self._best_of[self._default]

    def run(self, known: Tuned | None, deadline: float, progress: Callable[[], None]) -> Tuned:
        """Try candidates until the deadline (`time.monotonic`); ``known`` is a previous result to continue
        from. Candidates that differ from the best so far in the fewest parameters come first.
        """
        progress()
        self.default_ns()
        assert self._default is not None
        tried = {0, *(known.tried if known else ())}  # the first is the default
        kept: list[CompiledDispatch] = []
        if known and known.parameters is not None:
            kept = self._compile([known.parameters])
            self._run([self._default, *kept], _FIRST_ROUNDS)
        while len(tried) < len(self.candidates) and time.monotonic() < deadline:
            chunk = self._next(tried)
            tried.update(chunk)
            compiled = self._compile([self.candidates[i] for i in chunk])
            self._run([self._default, *compiled], _FIRST_ROUNDS)
            kept = self._close_to_best([*kept, *compiled])
            progress()
        return self._verdict(kept, tuple(sorted(tried)))

    def _next(self, tried: Set[int]) -> list[int]:
        best = min(self._best_of, key=lambda k: self._best_of[k]).parameters or self.candidates[0]
        rest = [i for i in range(len(self.candidates)) if i not in tried]
        rest.sort(key=lambda i: (_differing(self.candidates[i], best), i))
        return rest[: max(2, workers())]

    def _verdict(self, kept: Sequence[CompiledDispatch], tried: tuple[int, ...]) -> Tuned:
        """The winner of a final, longer comparison with the default."""
        default = self._default
        assert default is not None
        if not kept:
            return Tuned(None, self._best_of[default], self._best_of[default], tried)
        finalists = sorted(kept, key=lambda k: self._best_of[k])[:4]
        self._best_of.clear()
        self._run([default, *finalists], _LAST_ROUNDS)
        usual = self._best_of[default]
        winner = min(finalists, key=lambda k: self._best_of[k])
        if self._best_of[winner] < MARGIN * usual:
            return Tuned(winner.parameters, usual, self._best_of[winner], tried)
        return Tuned(None, usual, usual, tried)

    def _close_to_best(self, kernels: Sequence[CompiledDispatch]) -> list[CompiledDispatch]:
        best = min(self._best_of.values())
        kept = [k for k in kernels if self._best_of[k] <= _CLOSE * best]
        for kernel in kernels:
            if kernel not in kept:
                self._stopwatch.forget(kernel)
                self._best_of.pop(kernel, None)
        return kept

    def _compile(self, parameters: Sequence[Parameters]) -> list[CompiledDispatch]:
        """The kernels of those parameters that can be compiled."""

        def one(chosen: Parameters) -> CompiledDispatch | None:
            try:
                return self._compiler.compile(self._dispatch, self._key, chosen)
            except CodegenError:
                return None  # a candidate that exceeds the target's limits is skipped

        with ThreadPoolExecutor(workers()) as pool:
            compiled = [kernel for kernel in pool.map(one, parameters) if kernel is not None]
        return [kernel for kernel in compiled if self._stopwatch.loads(kernel)]

    def _run(self, kernels: Sequence[CompiledDispatch], rounds: int) -> None:
        """Time kernels against each other, recording the minimum time of each."""
        (warm,) = zip(*self._stopwatch.measure(kernels, 1), strict=True)
        fitting = max(2, min(rounds, _BATCH_NS * rounds // 5 // max(1, sum(warm))))
        for _ in range(2):
            for kernel, times in zip(kernels, self._stopwatch.measure(kernels, fitting), strict=True):
                self._best_of[kernel] = min(*times, self._best_of.get(kernel, times[0]))


def _differing(a: Parameters, b: Parameters) -> int:
    """The number of parameters with different values."""
    left, right = a.to_dict(), b.to_dict()
    return sum(left.get(name) != right.get(name) for name in left.keys() | right.keys())
