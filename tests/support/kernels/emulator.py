"""Runs GPU kernels of kernel IR in NumPy, for devices that this machine lacks (matrix units).

All invocations of a workgroup go through the kernel in lockstep, each instruction for all of them before
the next, with a mask of those that are active: barriers then have nothing to do. Values are arrays of
(invocations, lanes), matrices of (subgroups, rows, columns). Enough of the instructions for products; one
that is not known fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mansard.codegen.kernel import Binding, Block, For, If, Inst, Kernel, KType, KValue, warpgroups
from mansard.codegen.kernel.quad_products import QUAD
from mansard.codegen.kernel.verify import verify
from mansard.codegen.kernel.weight_streams import STREAM_OPS, StreamedKernel
from mansard.dtypes import DType
from mansard.hal.weight_streams import WeightStream

_BINARY = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "shl": np.left_shift, "shr": np.right_shift, "min": np.minimum, "max": np.maximum,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal,
}  # fmt: skip
_ATOMIC = {"add": np.add, "max": np.maximum, "min": np.minimum}
_COMBINED = {"add": np.sum, "max": np.max, "min": np.min}
_UNARY = {"neg": np.negative, "abs": np.abs, "not": np.invert, "sqrt": np.sqrt, "exp2_native": np.exp2}
Array = np.ndarray[Any, Any]


def run(
    kernel: Kernel, arrays: Sequence[Array], params: Sequence[int], grid: tuple[int, int, int], subgroup: int
) -> None:
    """Run a kernel over a grid; ``arrays`` are its buffers and hold the results after."""
    verify(kernel)
    for z in range(grid[2]):
        for y in range(grid[1]):
            for x in range(grid[0]):
                _Workgroup(kernel, arrays, params, (x, y, z), subgroup).run()


def run_streamed(streamed: StreamedKernel, arrays: Sequence[Array], workgroups: int, subgroup: int) -> None:
    """`run` for a kernel that reads a weight stream, in a grid of so many workgroups."""
    verify(streamed.kernel)
    for number in range(workgroups):
        workgroup = _Workgroup(streamed.kernel, arrays, (), (number, 0, 0), subgroup)
        workgroup.workgroups, workgroup.stream = workgroups, streamed.stream
        workgroup.run()
        workgroup.check_stream()


class _Workgroup:
    workgroups = 1
    stream: WeightStream | None = None

    def __init__(
        self,
        kernel: Kernel,
        arrays: Sequence[Array],
        params: Sequence[int],
        place: tuple[int, ...],
        subgroup: int,
    ) -> None:
        self.kernel, self.params, self.place, self.subgroup = kernel, params, place, subgroup
        self.count = int(np.prod(kernel.workgroup))
        self.buffers = [a.reshape(-1) for a in arrays]
        self.shared = {s.index: np.zeros((s.size, s.lanes), s.dtype.numpy) for s in kernel.shared}
        self.values: dict[int, Array] = {}
        self.turns = np.zeros(self.count // subgroup, np.int64)
        """Parts of its stream that each subgroup has read."""

    def run(self) -> None:
        with np.errstate(all="ignore"):
            self.block(self.kernel.body, np.ones(self.count, bool))

    def block(self, block: Block, mask: Array) -> None:
        for node in block.nodes:
            if isinstance(node, Inst):
                self.inst(node, mask)
            elif isinstance(node, For):
                self.loop(node, mask)
            else:
                self.branch(node, mask)

    def branch(self, node: If, mask: Array) -> None:
        condition = self.values[node.condition.id][:, 0]
        for side, active in ((node.then, mask & condition), (node.otherwise, mask & ~condition)):
            if active.any():
                self.block(side, active)

    def loop(self, node: For, mask: Array) -> None:
        lower, upper, step = (self.values[v.id][:, 0].copy() for v in (node.lower, node.upper, node.step))
        carried = [self.values[v.id] for v in node.inits]
        index, active = lower, mask & (lower < upper)
        while active.any():
            self.values[node.index.id] = index[:, None]
            self.values.update({v.id: value for v, value in zip(node.carried, carried, strict=True)})
            self.block(node.body, active)
            following = [self.values[v.id] for v in node.yields]
            carried = [
                self.chosen(v, active, a, b) for v, a, b in zip(node.carried, following, carried, strict=True)
            ]
            index = index + step
            active = active & (index < upper)
        self.values.update({v.id: value for v, value in zip(node.results, carried, strict=True)})

    def chosen(self, value: KValue, active: Array, new: Array, old: Array) -> Array:
        if value.type.matrix is None:
            return np.where(active[:, None], new, old)
        subgroups = active.reshape(-1, self.subgroup)
        whole = subgroups.all(1)
        assert (whole | ~subgroups.any(1)).all(), "matrices are handled by all invocations of a subgroup"
        return np.where(whole[:, None, None], new, old)

    def inst(self, inst: Inst, mask: Array) -> None:
        if inst.op in ("store", "store_lane", "matrix_store", "atomic"):
            self.write(inst, mask)
        elif inst.op == "stream_next":
            self.turns[self.whole(mask)] += 1
        elif inst.op != "barrier":
            assert inst.result is not None
            value = self.value(inst, mask)
            if inst.result.type.matrix is None:
                value = np.broadcast_to(value, (self.count, inst.result.type.lanes))
                value = value.astype(_register(inst.result.type.dtype))
            self.values[inst.result.id] = value

    def arg(self, inst: Inst, index: int) -> Array:
        return self.values[inst.args[index].id]

    def value(self, inst: Inst, mask: Array) -> Array:
        assert inst.result is not None
        op, attrs, type_ = inst.op, inst.attrs, inst.result.type
        if op == "const":
            if type_.matrix is not None:
                shape = (self.count // self.subgroup, type_.matrix.rows, type_.matrix.columns)
                return np.full(shape, attrs["value"], type_.dtype.numpy)
            return np.full((self.count, type_.lanes), attrs["value"])
        if op == "param":
            return np.full((self.count, 1), self.params[attrs["index"]])
        places = np.arange(self.count)[:, None]
        simple = {
            "workgroup_id": lambda: np.full((self.count, 1), self.place[attrs["axis"]]),
            "local_id": lambda: places if attrs["axis"] == 0 else places * 0,
            "subgroup_id": lambda: places // self.subgroup,
            "subgroup_lane": lambda: places % self.subgroup,
            "subgroup_size": lambda: places * 0 + self.subgroup,
            "subgroup_count": lambda: places * 0 + self.count // self.subgroup,
            "workgroups": lambda: places * 0 + self.workgroups,
            "iota": lambda: np.arange(type_.lanes)[None],
        }
        if op in simple:
            return simple[op]()
        if op.startswith("matrix_"):
            return self.matrix(inst)
        if op == "warpgroup_product":
            assert mask.all(), "all invocations of a workgroup multiply together"
            return self.warpgroup_product(inst)
        if op in ("load", "load_words"):
            return self.load(inst, mask)
        if op in STREAM_OPS:
            return self.stream_wait(mask) if op == "stream_wait" else self.stream_load(inst, mask)
        args = [self.arg(inst, i) for i in range(len(inst.args))]
        if op in _BINARY:
            return _BINARY[op](*args)
        if op in _UNARY:
            return _UNARY[op](*args)
        if op == "fma":
            return args[0] * args[1] + args[2]
        if op == "dot_bytes":
            sides = [
                np.ascontiguousarray(a.astype(np.int32))
                .view(np.int8 if signed else np.uint8)
                .astype(np.int32)
                for a, signed in zip(args, attrs["signed"], strict=False)
            ]
            return (sides[0] * sides[1]).sum(1, keepdims=True) + args[2]
        if op == "join_bytes":
            return np.concatenate(args, 1).astype(np.int8).view(np.int32)
        if op in ("div", "rem"):
            return _division(op, *args)
        if op == "reduce":
            return _COMBINED[attrs["combiner"]](args[0], axis=1, keepdims=True)
        if op == "subgroup_reduce":
            self.whole(mask)
            size, stride = attrs.get("cluster", self.subgroup), attrs.get("stride", 1)
            groups = args[0].reshape(-1, size // stride, stride)
            totals = _COMBINED[attrs["combiner"]](groups, axis=1, keepdims=True)
            return np.broadcast_to(totals, groups.shape).reshape(-1, 1)
        if op == "subgroup_reduce_each":
            self.whole(mask)
            combined = _COMBINED[attrs["combiner"]]
            totals = [combined(arg.reshape(-1, self.subgroup), axis=1) for arg in args]
            numbers = np.arange(self.subgroup) % len(args)
            return np.stack(totals, axis=1)[:, numbers].reshape(-1, 1)
        if op == "select":
            return np.where(args[0], args[1], args[2])
        if op == "cast":
            return args[0].astype(type_.dtype.numpy)
        if op == "bitcast":
            return np.ascontiguousarray(args[0]).view(type_.dtype.numpy)
        if op in ("splat", "early"):
            return args[0]
        if op == "extract":
            return args[0][:, attrs["lane"], None]
        if op == "insert":
            changed = args[0].copy()
            changed[:, attrs["lane"]] = args[1][:, 0]
            return changed
        if op == "unpack":
            return self.unpacked(args[0], attrs["dtype"], attrs["first"], type_.lanes)
        if op == "quad_products":
            self.whole(mask)
            return self.quad_products(args[0], np.concatenate(args[1:], 1))
        if op == "float12_pairs":
            return _float12_pairs(*(np.ascontiguousarray(a).view(np.uint8) for a in args))
        if op == "shuffle":
            return np.concatenate(args[:2], 1)[:, list(attrs["lanes"])]
        raise AssertionError(f"the emulator does not know {op}")

    def unpacked(self, words: Array, dtype: DType, first: int, count: int) -> Array:
        """Integers of a few bits out of words, or bf16 as f32."""
        if dtype is DType.BF16:
            halves = np.ascontiguousarray(words).view(np.uint16)[:, first : first + count]
            return (halves.astype(np.uint32) << 16).view(np.float32)
        assert dtype.is_int and dtype.bits <= 8, f"the emulator does not unpack {dtype.value}"
        place, start = np.divmod(np.arange(first, first + count) * dtype.bits, 32)
        codes = (words[:, place].view(np.uint32) >> start.astype(np.uint32)) & ((1 << dtype.bits) - 1)
        codes = codes.astype(np.int32)
        return codes - (codes >> (dtype.bits - 1) << dtype.bits) if dtype.is_signed else codes

    def quad_products(self, sums: Array, words: Array) -> Array:
        """Products of the weights of all quads with the vectors of all quads, as matrix units add them up."""
        pairs = np.ascontiguousarray(words).view(np.uint16).astype(np.uint32) << 16
        quads = self.subgroup // QUAD
        x, x_, a, b, a_, b_ = np.moveaxis(pairs.view(np.float32).reshape(-1, quads, QUAD, 6, 2), 3, 0)
        added = [
            np.einsum("sitk,sjtk->sij", first, x) + np.einsum("sitk,sjtk->sij", second, x_)
            for first, second in ((a, a_), (b, b_))
        ]
        whole = np.concatenate([one.reshape(-1, quads, QUAD, 2) for one in added], -1)
        return sums + whole.reshape(sums.shape)

    # Weight streams -------------------------------------------------------------------------
    def whole(self, mask: Array) -> Array:
        """The active subgroups, of which no invocation may be missing."""
        groups = mask.reshape(-1, self.subgroup)
        assert (groups.all(1) == groups.any(1)).all(), "a part of a subgroup is active"
        return groups.all(1)

    def share(self) -> tuple[int, int]:
        """The first of the workgroup's rows, and its parts."""
        assert self.stream is not None
        start, end = (self.stream.rows * (self.place[0] + i) // self.workgroups for i in range(2))
        return start, (end - start) * self.stream.parts * self.stream.products

    def stream_wait(self, mask: Array) -> Array:
        """The number of the part that is in the subgroup's slot."""
        numbers = np.arange(len(self.turns)) + self.turns * len(self.turns)
        assert (numbers < self.share()[1])[self.whole(mask)].all(), "a subgroup waits for a part too many"
        return np.repeat(numbers, self.subgroup)[:, None]

    def stream_load(self, inst: Inst, mask: Array) -> Array:
        assert inst.result is not None and self.stream is not None
        number, byte = (self.arg(inst, i).astype(np.int64) for i in range(2))
        out = np.zeros((self.count, inst.result.type.lanes), np.int32)
        stream = self.stream
        row, part = np.divmod(number[:, 0], stream.parts * stream.products)
        product, part = np.divmod(part, stream.parts)
        for place, operand in enumerate(stream.operands):
            within = byte[:, 0] - operand.offset
            here = mask & (product == place // stream.of_product) & (within >= 0) & (within < operand.part)
            first = ((self.share()[0] + row) * stream.parts + part) * operand.part + within
            assert not (first[here] % (4 * out.shape[1])).any(), "words of a slot are not aligned"
            words = self.buffers[operand.binding].view(np.int32)
            out[here] = words[first[here, None] // 4 + np.arange(out.shape[1])]
            mask = mask & ~here
        assert not mask.any(), "a load outside a slot"
        return out

    def check_stream(self) -> None:
        """Every subgroup has read its share."""
        parts, subgroups = self.share()[1], len(self.turns)
        expected = [max(0, -(-(parts - number) // subgroups)) for number in range(subgroups)]
        assert self.turns.tolist() == expected, "parts of the stream were not read"

    # Memory ---------------------------------------------------------------------------------
    def load(self, inst: Inst, mask: Array) -> Array:
        assert inst.result is not None
        memory, index, lanes = inst.attrs["memory"], self.arg(inst, 0), inst.result.type.lanes
        if not isinstance(memory, Binding):
            shared = self.shared[memory.index]
            if memory.lanes > 1:
                return shared[np.where(mask, index[:, 0], 0)]
            return shared[np.where(mask[:, None], self.spread(index, lanes), 0), 0]
        buffer = self.buffers[memory.index]
        if inst.op == "load_words":
            per = 4 // buffer.itemsize
            assert not (index[mask] % (lanes * per)).any(), "words are not aligned"
            index, buffer = index // per, buffer.view(np.int32)
        at = self.spread(index, lanes)
        assert ((at >= 0) & (at < len(buffer)))[mask].all(), f"{inst.op} outside a buffer"
        if inst.attrs.get("aligned"):
            assert not (at[mask, 0] % lanes).any(), "a vector is not aligned"
        return buffer[np.where(mask[:, None], at, 0)]

    def write(self, inst: Inst, mask: Array) -> None:
        memory, index = inst.attrs["memory"], self.arg(inst, 0)
        if inst.op == "matrix_store":
            self.matrix_store(inst)
        elif inst.op == "store_lane":
            self.shared[memory.index][index[mask, 0], self.arg(inst, 1)[mask, 0]] = self.arg(inst, 2)[mask, 0]
        elif not isinstance(memory, Binding) and memory.lanes > 1:
            self.shared[memory.index][index[mask, 0]] = self.arg(inst, 1)[mask]
        else:
            target = self.buffers[memory.index] if isinstance(memory, Binding) else self.shared[memory.index]
            value = self.arg(inst, 1)
            at = self.spread(index, value.shape[1])[mask]
            assert ((at >= 0) & (at < len(target))).all(), "store outside a buffer"
            if inst.op == "atomic":
                _ATOMIC[inst.attrs["combiner"]].at(target.reshape(-1), at, value[mask])
            else:
                target.reshape(-1)[at] = value[mask]

    def spread(self, index: Array, lanes: int) -> Array:
        return index if index.shape[1] > 1 else index + np.arange(lanes)[None]

    # Matrices -------------------------------------------------------------------------------
    def matrix(self, inst: Inst) -> Array:
        assert inst.result is not None
        if inst.op == "matrix_multiply":
            a, b, c = (self.arg(inst, i) for i in range(3))
            return c + a.astype(c.dtype) @ b.astype(c.dtype)
        if inst.op == "matrix_map":
            return self.mapped(inst)
        if inst.op == "matrix_reduce":
            combined = np.max if inst.attrs["combiner"] == "max" else np.sum
            value = self.arg(inst, 0)
            return np.broadcast_to(combined(value, 2, keepdims=True), value.shape)
        if inst.op == "matrix_convert":
            return self.arg(inst, 0).astype(inst.result.type.dtype.numpy)
        if inst.op == "matrix_scale":
            return self.arg(inst, 0) * self.uniform(inst, 1)[:, None, None]
        memory, places = self.cells(inst, inst.result.type)
        return memory[places]

    def mapped(self, inst: Inst) -> Array:
        """Element by element: each invocation holds equally many of its subgroup's matrix."""
        assert inst.result is not None
        matrices = [self.arg(inst, i) for i in range(len(inst.args))]
        dtype = inst.result.type.dtype.numpy
        shares = [m.reshape(self.count, -1) for m in matrices]
        out = np.zeros(shares[0].shape, dtype)
        everybody = np.ones(self.count, bool)
        for place in range(out.shape[1]):
            for element, share in zip(inst.attrs["elements"], shares, strict=True):
                self.values[element.id] = share[:, place, None]
            self.block(inst.attrs["body"], everybody)
            out[:, place] = self.values[inst.attrs["value"].id][:, 0]
        return out.reshape(matrices[0].shape)

    def matrix_store(self, inst: Inst) -> None:
        memory, places = self.cells(inst, inst.args[2].type)
        memory[places] = self.arg(inst, 2)

    def cells(self, inst: Inst, type_: KType) -> tuple[Array, Array]:
        """The memory as elements of the matrix, and where in it every element of each subgroup's lies."""
        memory, matrix = inst.attrs["memory"], type_.matrix
        assert matrix is not None and matrix.scope == "subgroup"
        data = self.buffers[memory.index] if isinstance(memory, Binding) else self.shared[memory.index]
        unit = 1 if isinstance(memory, Binding) else data.itemsize * memory.lanes // type_.dtype.itemsize
        start, stride = (self.uniform(inst, i)[:, None, None] * unit for i in range(2))
        rows, columns = np.arange(matrix.rows)[None, :, None], np.arange(matrix.columns)[None, None]
        by_rows = inst.attrs["by"] == "rows"
        at = start + (rows * stride + columns if by_rows else columns * stride + rows)
        flat = data.reshape(-1).view(type_.dtype.numpy)
        assert (at >= 0).all() and (at < len(flat)).all(), f"{inst.op} outside its memory"
        return flat, at

    def warpgroup_product(self, inst: Inst) -> Array:
        """As `mansard.codegen.kernel.warpgroups` says, with shared memory overwritten."""
        steps = self.arg(inst, 0)[:, 0]
        assert (steps == steps[0]).all() and steps[0] >= 1
        self.shared[inst.attrs["memory"].index][:] = np.nan
        indices = [self.arg(inst, i)[:, 0].astype(np.int64) for i in range(1, len(inst.args))]
        right_step, left, right = indices[0], indices[1 : 1 + warpgroups.LEFT], indices[1 + warpgroups.LEFT :]
        rows = self.lines(inst.attrs["left"], left, right_step * 0 + warpgroups.DEPTH, int(steps[0]))
        columns = self.lines(inst.attrs["right"], right, right_step, int(steps[0]))
        if inst.attrs["along"] == "side":  # a line is 64 columns at one position of the depth
            parts = columns.reshape(-1, warpgroups.DEPTH, int(steps[0]), 64)
            columns = parts.transpose(0, 3, 2, 1).reshape(warpgroups.COLUMNS, -1)
        else:
            columns = columns.reshape(warpgroups.COLUMNS, -1)
        sums = rows.reshape(warpgroups.ROWS, -1) @ columns.T
        thread, lane = np.arange(self.count)[:, None], np.arange(warpgroups.SUMS)[None]
        row = thread // 32 * 16 + thread % 32 // 4 + 8 * (lane // 2 % 2)
        column = 64 * (lane // 32) + 8 * (lane % 32 // 4) + thread % 4 * 2 + lane % 2
        return sums[row, column]

    def lines(self, memory: Binding, starts: Sequence[Array], step: Array, steps: int) -> Array:
        """Lines of 64 elements, 32 from each of the indices, over all steps, in f32."""
        buffer, thread = self.buffers[memory.index], np.arange(self.count)
        lines = np.zeros((32 * len(starts), steps, 8, 8), np.float32)
        for number, start in enumerate(starts):
            assert not ((start % 8).any() or (step % 8).any()), "a copy of 16 bytes is not aligned"
            at = (start[:, None] + np.arange(steps) * step[:, None])[..., None] + np.arange(8)
            assert ((at >= 0) & (at < len(buffer))).all(), "a copy outside a buffer"
            lines[thread // 8 + 32 * number, :, thread % 8] = buffer[at]
        return lines.reshape(len(lines), steps, 64)

    def uniform(self, inst: Inst, index: int) -> Array:
        """An operand that all invocations of a subgroup agree on: one value for each subgroup."""
        values = self.arg(inst, index)[:, 0].reshape(-1, self.subgroup)
        assert (values == values[:, :1]).all(), f"{inst.op}: operand {index} differs in a subgroup"
        return values[:, 0]


def _register(dtype: DType) -> Any:
    return np.dtype(bool) if dtype is DType.BOOL else dtype.numpy


def _float12_pairs(high: Array, low: Array) -> Array:
    """The bits of the numbers as bf16."""
    nibbles = np.stack([low & 15, low >> 4], -1).reshape(high.shape).astype(np.uint16)
    bits = (high.astype(np.uint16) << 3) + (112 << 7) | nibbles & 7 | nibbles >> 3 << 15
    return np.ascontiguousarray(bits).view(np.int32)


def _division(op: str, a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return a / b if op == "div" else np.fmod(a, b)
    quotient = np.trunc(a.astype(np.float64) / np.where(b == 0, 1, b)).astype(a.dtype)
    return quotient if op == "div" else a - quotient * b
