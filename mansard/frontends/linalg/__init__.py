"""Import of linalg-on-tensors MLIR, to which other frontends lower, into a Graph (`module`)."""
