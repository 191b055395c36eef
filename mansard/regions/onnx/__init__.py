"""Named ops as ONNX models: opset 17, static shapes, channels-first images, quantised values in QDQ form."""

from mansard.regions.onnx.model import WrittenOnnx, onnx_bytes, onnx_model, write_onnx

__all__ = ["WrittenOnnx", "onnx_bytes", "onnx_model", "write_onnx"]
