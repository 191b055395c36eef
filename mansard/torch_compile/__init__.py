"""The backend ``mansard`` of ``torch.compile``, found by PyTorch through an entry point."""

from mansard.torch_compile.backend import backend

__all__ = ["backend"]
