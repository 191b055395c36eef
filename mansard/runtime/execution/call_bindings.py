"""The memory bound to the binding slots of a call's commands: caller's arrays, output blocks, workspaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mansard.hal import BindingSlot, Buffer, MemoryKind
from mansard.plan.stores import Store
from mansard.runtime.execution.copy_counts import HostCopyCounter
from mansard.runtime.execution.environment import ExecutionEnvironment
from mansard.runtime.memory.outputs import Outputs
from mansard.runtime.memory.stores import MIN_BUFFER_BYTES
from mansard.runtime.memory.tensors import Array, empty
from mansard.runtime.memory.workspace import Workspace, WorkspacePlan


class CallBindings:
    """The bindings of the calls of one context, one call at a time.

    ``stores`` are, by device slot, the stores in the order of their binding slots; the binding slot after
    them is the workspace.
    """

    def __init__(
        self,
        environment: ExecutionEnvironment,
        outputs: Outputs,
        stores: Sequence[Sequence[Store]],
        workspace_plans: Mapping[int, WorkspacePlan],
        counter: HostCopyCounter,
    ) -> None:
        self._environment, self._outputs, self._counter = environment, outputs, counter
        self.stores, self.workspace_plans = stores, workspace_plans
        self.inputs: Sequence[Array] = ()
        """The caller's inputs."""
        self._workspaces: dict[int, Workspace] = {}
        self._imported: list[Buffer] = []
        self._empty: dict[int, Buffer] = {}
        """By device slot, the buffer bound for arrays without elements."""

    def place(self, store: Store, slot: int) -> tuple[BindingSlot, int] | None:
        """The binding slot and offset of a store that is bound at submission, else None."""
        if store.role == "argument" or store in self._outputs.pooled:
            return BindingSlot(self.stores[slot].index(store)), 0
        workspace = self.workspace_plans.get(slot)
        if workspace is not None and store in workspace.offsets:
            return BindingSlot(len(self.stores[slot])), workspace.offsets[store]
        return None

    def reserve(self) -> None:
        """Acquire the workspaces that a call needs; raises OutOfMemoryError."""
        for slot, plan in self.workspace_plans.items():
            if slot not in self._workspaces:
                self._environment.workspaces.acquire(plan, self._workspaces)

    def array(self, store: Store) -> Array:
        """The array bound for a store: an output block, or an array of the caller's."""
        block = self._outputs.block_bytes(store)
        if block is not None:
            return block
        return self._outputs.in_place(store.source) if store.output else self.inputs[store.source]

    def arrays(self, slot: int) -> list[Array] | None:
        """Everything bound for a slot as arrays; None when one has no elements, and thus no address."""
        arrays = [self.array(store) for store in self.stores[slot]]
        if any(array.size == 0 for array in arrays):
            return None
        if slot in self._workspaces:
            arrays.append(self._workspaces[slot].view)
        return arrays

    def buffers(self, slot: int) -> dict[int, Buffer]:
        """Everything bound for a slot as buffers of its device, by binding slot."""
        buffers: dict[int, Buffer] = {}
        for index, store in enumerate(self.stores[slot]):
            buffers[index] = self._import(slot, self.array(store))
        if slot in self._workspaces:
            buffers[len(self.stores[slot])] = self._workspaces[slot].buffer
        return buffers

    def release(self) -> None:
        """Drop the caller's arrays and return the workspaces; no device may use them any more."""
        for buffer in self._imported:
            buffer.close()
        self.inputs, self._imported = (), []
        self._environment.workspaces.release(self._workspaces)

    def close(self) -> None:
        """Free the buffers for empty arrays."""
        for buffer in self._empty.values():
            buffer.close()

    def _import(self, slot: int, array: Array) -> Buffer:
        device = self._environment.slots[slot].device
        if array.nbytes == 0:
            if slot not in self._empty:
                self._empty[slot] = device.allocate(MIN_BUFFER_BYTES, MemoryKind.SHARED, "no elements")
            return self._empty[slot]
        alignment = device.capabilities.import_alignment
        if alignment > 1 and array.ctypes.data % alignment:
            aligned = empty(array.shape, array.dtype, alignment)
            aligned[...] = array
            self._counter.add(array.nbytes)
            array = aligned
        buffer = device.import_host(array)
        self._imported.append(buffer)
        return buffer
