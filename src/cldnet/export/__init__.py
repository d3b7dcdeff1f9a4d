"""Export a model to a file that runs without this library: ONNX for any runtime, or a program for torch alone.

The file includes preprocessing, net, features, solution, calibration and labels. It is compared with the original before it is
written.
"""

from cldnet.export.write import Agreement, Disagreement, to_onnx, to_torch

__all__ = ["Agreement", "Disagreement", "to_onnx", "to_torch"]
