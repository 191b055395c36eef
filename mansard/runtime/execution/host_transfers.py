"""Copies by the host for a call: inputs to memory that devices read, outputs from memory that they wrote."""

from __future__ import annotations

from collections.abc import Mapping

from mansard.plan.assertions import check_array
from mansard.plan.plan import TensorSpec
from mansard.runtime.execution.call_bindings import CallBindings
from mansard.runtime.execution.copy_counts import HostCopyCounter
from mansard.runtime.execution.environment import ExecutionEnvironment
from mansard.runtime.memory.host_copy import Bytes, HostCopy, copy_all, flat
from mansard.runtime.memory.outputs import Outputs
from mansard.runtime.memory.staged_upload import StagedUpload
from mansard.runtime.memory.stores import StoreMemory
from mansard.runtime.memory.tensors import Array


class HostTransfers:
    """The host's copies for the calls of one context, one call at a time.

    ``sizes`` are the bytes of values, ``symbols`` the values of the plan's symbols.
    """

    def __init__(
        self,
        environment: ExecutionEnvironment,
        memory: StoreMemory,
        sizes: Mapping[int, int],
        bindings: CallBindings,
        outputs: Outputs,
        staged: StagedUpload,
        counter: HostCopyCounter,
        symbols: Mapping[str, int],
    ) -> None:
        self._environment, self._memory, self._bytes = environment, memory, sizes
        self._dims, self._asserts = symbols, environment.plan.computed_asserts
        self._bindings, self._outputs, self._staged, self._counter = bindings, outputs, staged, counter

    def fill_inputs(self) -> None:
        """Copy the inputs that devices read from the session's memory, but for those uploaded in stages."""
        copies = [
            HostCopy(flat(array), self._memory.view(store, array.nbytes))
            for array, stores in zip(self._bindings.inputs, self._environment.layout.uploads, strict=True)
            for store in stores
            if store not in self._staged.stores
        ]
        for copy in copies:
            self._counter.add(copy.source.nbytes)
        copy_all(copies)

    def fill_staged(self) -> None:
        """Fill the pieces of staged uploads that submissions wait for; once per call."""
        sources = {
            store: flat(array)
            for array, stores in zip(self._bindings.inputs, self._environment.layout.uploads, strict=True)
            for store in stores
            if store in self._staged.stores
        }
        targets = {store: self._memory.view(store, array.size) for store, array in sources.items()}
        if self._staged.fill(sources, targets):
            for array in sources.values():
                self._counter.add(array.size)

    def check_asserts(self) -> None:
        """Raise ModelAssertionError or IndexOutOfRangeError when an assert of the model does not hold."""
        for check in self._asserts:
            data = self._read(check.value)
            item = check.dtype.numpy.itemsize
            check_array(check, data[: len(data) // item * item].view(check.dtype.numpy), self._dims)

    def outputs(self) -> list[Array]:
        """The arrays of the outputs of a completed call."""
        copies: list[HostCopy] = []
        results = [self._output(n, spec, copies) for n, spec in enumerate(self._environment.plan.outputs)]
        copy_all(copies)
        return results

    def _output(self, number: int, spec: TensorSpec, copies: list[HostCopy]) -> Array:
        """The array for an output; what has to be copied to it is appended to ``copies``."""

        def copy(target: Array) -> None:
            copies.append(HostCopy(self._read(spec.value)[: target.nbytes], flat(target)))
            self._counter.add(target.nbytes)

        return self._outputs.result(number, copy)

    def _read(self, value: int) -> Bytes:
        """The host's view of an output or assert value after a call."""
        store = self._environment.layout.readbacks[value]
        size = self._bytes[value]
        if store.role == "argument":
            return flat(self._bindings.array(store))[:size]
        if store.role == "constant":
            return self._environment.constants.read(store.source)[:size]
        block = self._outputs.block_bytes(store)
        if block is not None:
            return block[:size]
        memory = self._environment.states.memory if store.role == "state" else self._memory
        return memory.view(store, size)
