"""Programs of torch.export against the models that they come from."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.export.samples import KINDS, LABELS, taught

from cldnet.export import to_torch
from cldnet.export.graph import quiet

#: What somebody does who has torch and nothing of ours.
ALONE = """
import json, sys, warnings
sys.modules["cldnet"] = None
import torch
warnings.simplefilter("ignore")
told = {"cldnet.json": ""}
answering = torch.export.load(sys.argv[1], extra_files=told).module()
inputs = torch.tensor(json.load(sys.stdin), dtype=torch.uint8)
labels = json.loads(json.loads(told["cldnet.json"])["labels"])
probabilities, scores = answering(inputs)
print(json.dumps([[labels[best] for best in scores.argmax(1)], probabilities.tolist()]))
"""


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_answers_as_its_model(kind: str, tmp_path: Path) -> None:
    clf, x = taught(kind)
    found = to_torch(clf, tmp_path / "model.pt2", x)
    assert (found.rows, found.labels) == (len(x), len(x))
    with quiet():
        answering = torch.export.load(tmp_path / "model.pt2").module()
    inputs = torch.from_numpy(x[:1].copy())
    probabilities, _ = answering(inputs if inputs.dtype == torch.uint8 else inputs.double())
    assert np.abs(probabilities.numpy() - clf.predict_proba(x[:1])).max() < 1e-4


def test_torch_alone_reads_it(tmp_path: Path) -> None:
    clf, x = taught("photos")
    to_torch(clf, tmp_path / "model.pt2")
    call = [sys.executable, "-c", ALONE, str(tmp_path / "model.pt2")]
    answer = subprocess.run(call, input=json.dumps(x[:5].tolist()), capture_output=True, text=True, check=True)
    labels, probabilities = json.loads(answer.stdout)
    assert labels == clf.predict(x[:5]).tolist()
    assert set(labels) <= set(LABELS)
    assert np.abs(np.array(probabilities) - clf.predict_proba(x[:5])).max() < 1e-4
