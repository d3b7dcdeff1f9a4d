"""Say what photos show, without cldnet and without PyTorch; the model is what `cldnet export birds.cldnet --to onnx` wrote.

python onnx_photo.py birds.onnx one.jpg two.jpg …   needs numpy, Pillow and onnxruntime.
"""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

session = onnxruntime.InferenceSession(sys.argv[1])
about = session.get_modelmeta().custom_metadata_map
side, resize, labels = int(about["side"]), int(about["resize"]), json.loads(about["labels"])
for path in sys.argv[2:]:
    with Image.open(path) as photo:
        photo.draft(None, [-(-2 * resize * length // min(photo.size)) for length in photo.size])  # large JPEGs, quicker
        upright = ImageOps.exif_transpose(photo).convert("RGB")
    size = np.array(upright.size)
    resized = resize * size // size.min()
    first = np.round((resized - side) / 2)
    box = *(first * size / resized), *np.minimum(size, (first + side) * size / resized)
    pixels = np.asarray(upright.resize((side, side), Image.Resampling.BICUBIC, box=box)).transpose(2, 0, 1)
    probabilities, scores = session.run(["probabilities", "scores"], {"input": pixels[None]})
    print(f"{path}: {labels[scores[0].argmax()]} {probabilities[0].max():.2%}")
