"""All exceptions raised by Mansard, in one tree.

MansardError
├── CompileError                 a model could not be turned into an artifact
│   ├── ImportModelError         the frontend could not read the model
│   │   └── GraphSyntaxError     a text is not a graph (names line, column and what was expected)
│   ├── UnsupportedOpError       an op has no lowering (names op, location, what is supported)
│   ├── VerificationError        an IR violates its invariants (a Mansard defect or bad hand-written IR)
│   ├── PlacementError           no device may run a dispatch, or fallback="error" refused one
│   └── CodegenError             a kernel could not be generated or was rejected by a tool
├── ArtifactError                a file is truncated, altered, foreign or of another version
│   ├── SignatureError           a file is not signed by a trusted key, or a key cannot be used
│   └── TargetMismatchError      no present device matches a target of the artifact
├── InputError                   a call's inputs do not fit the model's signature
│   ├── ShapeContractError       a dim is outside its range or divisor
│   ├── IndexOutOfRangeError     an index that an op reads is outside the dim (names op and index)
│   └── ModelAssertionError      an assertion of the model does not hold for the inputs
├── DeviceError                  a device or driver reported a failure
│   ├── DeviceUnavailableError   no such device, or it is below the baseline (with reasons)
│   ├── OutOfMemoryError         an allocation did not fit
│   ├── DeviceLostError          the device stopped answering
│   └── ExecutionError           a submission failed; carried by its timeline point
├── WorkerError                  a child process that runs a library for this one failed
│   ├── WorkerUnavailableError   it cannot be started, or lacks a package
│   ├── WorkerLostError          it died, took too long or was cancelled
│   └── WorkerCallError          the library raised an exception
├── WaitTimeoutError             a timeline point was not reached in time
├── QueueFullError               the queue of calls of a model is full
├── DeadlineExceededError        a call did not complete by its deadline and was abandoned
└── CallCancelledError           a call was cancelled; carried by the points of its work that had not started
"""

from __future__ import annotations

__all__ = [
    "ArtifactError",
    "CallCancelledError",
    "CodegenError",
    "CompileError",
    "DeadlineExceededError",
    "DeviceError",
    "DeviceLostError",
    "DeviceUnavailableError",
    "ExecutionError",
    "GraphSyntaxError",
    "ImportModelError",
    "IndexOutOfRangeError",
    "InputError",
    "MansardError",
    "ModelAssertionError",
    "OutOfMemoryError",
    "PlacementError",
    "QueueFullError",
    "ShapeContractError",
    "SignatureError",
    "TargetMismatchError",
    "UnsupportedOpError",
    "VerificationError",
    "WaitTimeoutError",
    "WorkerCallError",
    "WorkerError",
    "WorkerLostError",
    "WorkerUnavailableError",
]


class MansardError(Exception):
    """Base of every error raised by Mansard."""


class CompileError(MansardError):
    """A model could not be compiled."""


class ImportModelError(CompileError):
    """A frontend could not read the model it was given."""


class GraphSyntaxError(ImportModelError):
    """A text is not a graph. ``line`` and ``column`` count from 1; ``expected`` names the valid tokens
    there."""

    def __init__(self, line: int, column: int, expected: str, actual: str) -> None:
        self.line, self.column, self.expected = line, column, expected
        super().__init__(f"line {line}, column {column}: expected {expected}, not {actual}")


class UnsupportedOpError(CompileError):
    """An op of the model has no lowering.

    ``op`` is the op's name, ``location`` its source location in the user's model (may be empty).
    """

    def __init__(self, op: str, location: str = "", detail: str = "") -> None:
        self.op, self.location, self.detail = op, location, detail
        self.others: tuple[UnsupportedOpError, ...] = ()
        """Further ops of the model that are not supported, which the message also names."""
        where = f" at {location}" if location else ""
        super().__init__(f"unsupported op {op!r}{where}" + (f": {detail}" if detail else ""))


class VerificationError(CompileError):
    """An IR violates its invariants."""


class PlacementError(CompileError):
    """No allowed device can run a dispatch."""


class CodegenError(CompileError):
    """A kernel could not be generated."""


class ArtifactError(MansardError):
    """An artifact file cannot be used."""


class SignatureError(ArtifactError):
    """An artifact is not signed by a trusted key, or a key cannot be used."""


class TargetMismatchError(ArtifactError):
    """No present device matches a target the artifact was compiled for."""


class InputError(MansardError):
    """The inputs of a call do not fit the model's signature."""


class ShapeContractError(InputError):
    """A dim of an input is outside the contract stated when the model was compiled."""


class ModelAssertionError(InputError):
    """An assertion of the model does not hold for the inputs of a call (``location`` may be empty)."""

    def __init__(self, message: str, location: str = "") -> None:
        self.location = location
        super().__init__(message + (f" (at {location})" if location else ""))


class IndexOutOfRangeError(InputError):
    """An op reads ``index``, which is not in ``low … high - 1`` (``location`` may be empty)."""

    def __init__(self, op: str, index: int, low: int, high: int, location: str = "") -> None:
        self.op, self.index, self.low, self.high, self.location = op, index, low, high, location
        where = f" at {location}" if location else ""
        valid = f"valid are {low} to {high - 1}" if low < high else "the dim is empty"
        super().__init__(f"{op}{where}: index {index} is out of range; {valid}")


class DeviceError(MansardError):
    """A device or its driver reported a failure."""


class DeviceUnavailableError(DeviceError):
    """A requested device is absent or below the baseline; the message gives the reasons."""


class OutOfMemoryError(DeviceError, MemoryError):
    """A device allocation did not fit."""


class DeviceLostError(DeviceError):
    """The device stopped answering; everything submitted to it fails with this error."""


class ExecutionError(DeviceError):
    """A submission failed while running."""


class WorkerError(MansardError):
    """A child process that runs a library for this one failed."""


class WorkerUnavailableError(WorkerError):
    """A child process cannot be started, or its environment lacks a package or has another version."""


class WorkerLostError(WorkerError):
    """A child process died, did not answer in time, or was ended to cancel its call."""


class WorkerCallError(WorkerError):
    """A function in a child process raised an exception.

    ``exception`` is the name of its class, ``message`` its text, ``details`` the child's traceback.
    """

    def __init__(self, worker: str, function: str, exception: str, message: str, details: str) -> None:
        self.exception, self.message, self.details = exception, message, details
        super().__init__(f"{worker}: {function} raised {exception}: {message}")


class WaitTimeoutError(MansardError, TimeoutError):
    """A timeline point was not reached in time; names the point, expected and seen values."""


class QueueFullError(MansardError):
    """A call was rejected because its model's queue was full; the message names the limit."""


class DeadlineExceededError(MansardError, TimeoutError):
    """A call did not complete by its deadline. Its work that had not started was abandoned."""


class CallCancelledError(MansardError):
    """A call was cancelled; timeline points of its work that had not started fail with this error."""
