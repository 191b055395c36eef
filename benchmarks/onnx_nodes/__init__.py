"""The node tests of ONNX's own backend test suite, compiled for each device."""
