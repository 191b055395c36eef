"""The size of an attention tile on a GPU, and the distribution of its work over invocations."""

from __future__ import annotations

from dataclasses import dataclass

from mansard.codegen.schedules.common.base import power_of_two_below

VECTOR = 4
"""Elements of a vector in workgroup memory: the widest access."""


@dataclass(frozen=True)
class AttentionTile:
    """Query rows of a workgroup (at least 4), keys of a block, invocations, and the number of invocations
    along the keys; all are powers of two."""

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
        """Keys of a block whose scores an invocation computes."""
        return self.keys // self.along

    def quads(self, columns: int) -> int:
        """Quads of rows per invocation in the weighted sum: more if there would be more sums than
        invocations."""
        quads = 1
        while quads < min(2, self.rows // VECTOR) and self.sums(columns, quads) > self.threads:
            quads *= 2
        return quads

    def sums(self, columns: int, quads: int) -> int:
        """Pieces of a result: each is ``quads`` quads of rows times a vector of columns."""
        return self.rows // VECTOR // quads * -(-columns // VECTOR)

    def split(self, columns: int) -> int:
        """Parts of a block's keys that are summed by different invocations."""
        return min(self.keys, power_of_two_below(self.threads // self.sums(columns, self.quads(columns))))

    def shared_vectors(self, depth: int, columns: int) -> tuple[int, int, int, int, int]:
        """Vectors of shared memory for queries, keys, values, exponentials and partial reductions."""
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
