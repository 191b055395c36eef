"""GPU schedules: work is distributed over the invocations of a workgroup, which exchange data through
explicit shared memory."""
