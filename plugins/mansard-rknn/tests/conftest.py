"""The folder's own modules can be imported by tests; Rockchip's packages are in the worker's environment."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
WORKER = HERE.parents[2] / "build" / "plugins" / "rknn-worker" / "bin" / "python"

sys.path.insert(0, str(HERE))
if WORKER.exists():
    os.environ.setdefault("MANSARD_RKNN_PYTHON", str(WORKER))
