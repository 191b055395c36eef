"""The ONNX frontend: files and ``onnx.ModelProto`` objects, through torch-mlir's conversions to linalg."""
