"""MLIR's passes in a child process: a crash or a stall of native code is an error of the import."""
