"""What `benchmarks/models/cpu.py` is made of: cases, peers, steps in processes of their own, rows, report.

``cases`` and ``step`` need NumPy alone, so that a runtime is measured without the framework the model came
from; ``networks`` needs torch and transformers.
"""
