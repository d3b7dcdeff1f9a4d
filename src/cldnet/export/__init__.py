"""A model as a file that needs none of this library: ONNX for any runtime, or a program for torch alone.

Preprocessing, net, features, solution, calibration and labels are all in the file, and it is held against the original before
it is written.
"""

from cldnet.export.agreement import Agreement, Disagreement
from cldnet.export.onnxfile import to_onnx
from cldnet.export.torchfile import to_torch

__all__ = ["Agreement", "Disagreement", "to_onnx", "to_torch"]
