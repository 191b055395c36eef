"""Import of PyTorch models: ``torch.export``, torch-mlir to linalg, then `mansard.frontends.linalg`.

Weights never enter MLIR: every parameter and buffer is an argument of the imported function and is bound to
its tensor's storage by name.
"""
