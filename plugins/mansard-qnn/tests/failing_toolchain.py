"""A toolchain that fails as the environment variable HOW says."""

import os
import signal
import time

if os.environ["HOW"] == "import":
    raise ImportError("onnxruntime 1.20 (needs 1.24.2)")


def compile_model(model, settings):
    match os.environ["HOW"]:
        case "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "hang":
            time.sleep(60)
        case "raise":
            raise KeyError("out of sorts")
