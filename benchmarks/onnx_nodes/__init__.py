"""ONNX's node tests, compiled and compared with their expected outputs."""
