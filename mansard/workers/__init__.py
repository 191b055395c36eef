"""Functions of a module in a child process, of this Python environment or of another: what crashes, hangs or
cannot be installed beside Mansard does so there."""

from mansard.workers.checking import problem
from mansard.workers.environment import Environment, interpreter
from mansard.workers.worker import Remote, Worker

__all__ = ["Environment", "Remote", "Worker", "interpreter", "problem"]
