"""The size of a tile of attention on a GPU, and how its invocations share the work."""

from __future__ import annotations

from dataclasses import dataclass

from mansard.codegen.schedules.common.base import power_of_two_below

VECTOR = 4
"""Elements of a vector in workgroup memory: the widest access there is."""


@dataclass(frozen=True)
class AttentionTile:
    """Query rows of a workgroup (a power of two, at least 4), keys of a block, invocations, and how many of
    these stand side by side along the keys; powers of two all."""

    rows: int
    keys: int
    threads: int
    along: int

    @property
    def invocation_rows(self) -> int:
        """Rows whose scores an invocation computes."""
        return self.rows * self.along // self.threads

    @property
    def invocation_keys(self) -> int:
        """Keys of a block for which an invocation computes scores."""
        return self.keys // self.along

    def quads(self, columns: int) -> int:
        """Quads of rows of which an invocation sums the columns: more where there would be more
        sums than invocations."""
        quads = 1
        while quads < min(2, self.rows // VECTOR) and self.sums(columns, quads) > self.threads:
            quads *= 2
        return quads

    def sums(self, columns: int, quads: int) -> int:
        """Pieces of a result: ``quads`` of rows times a vector of columns each."""
        return self.rows // VECTOR // quads * -(-columns // VECTOR)

    def split(self, columns: int) -> int:
        """Parts of a block's keys that different invocations sum up."""
        return min(self.keys, power_of_two_below(self.threads // self.sums(columns, self.quads(columns))))

    def shared_vectors(self, depth: int, columns: int) -> tuple[int, int, int, int, int]:
        """Vectors that queries, keys, values, exponentials and partial reductions take."""
        depth_vectors, column_vectors = -(-depth // VECTOR), -(-columns // VECTOR)
        split = self.split(columns)
        partial = split * self.rows * column_vectors if split > 1 else 0
        return (
            self.rows * depth_vectors,
            max(self.keys * (depth_vectors + 1), partial),
            self.keys * column_vectors,
            self.keys * (self.rows // VECTOR + 1),
            self.rows * max(1, self.along // VECTOR),
        )

    def shared_bytes(self, depth: int, columns: int) -> int:
        """Bytes of workgroup memory."""
        return 16 * (sum(self.shared_vectors(depth, columns)) + self.rows // VECTOR) + 4 * self.rows
