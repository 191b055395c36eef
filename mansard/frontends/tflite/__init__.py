"""The frontend of LiteRT's ``.tflite`` models: a reader of the file, and a rule for each operator."""
