"""The ONNX frontend: files and ``onnx.ModelProto`` objects, node by node by a table of rules."""
