"""Sums of whole numbers take half the bytes in a file, and come back to the bit."""

import json

import numpy as np
import pytest
import torch

from cldnet import CLDNetClassifier
from cldnet.storage.format import read, write
from cldnet.storage.narrow import narrowed, widened


def test_whole_numbers_that_fit_are_converted_and_come_back():
    whole = torch.arange(-1000, 1000, dtype=torch.float64)
    tensors = {"whole": whole, "limit": torch.full((1024,), 2.0**31 - 1, dtype=torch.float64), "small": whole[:9]}
    stored, names = narrowed(tensors)
    assert names == ["limit", "whole"]
    assert stored["whole"].dtype == torch.int32
    assert all(torch.equal(tensors[name], tensor) for name, tensor in widened(stored, names).items())


@pytest.mark.parametrize("other", [0.5, 2.0**31, float("nan")])
def test_others_stay_as_they_are(other):
    tensors = {"sums": torch.cat([torch.zeros(2000), torch.tensor([other])]).double()}
    stored, names = narrowed(tensors)
    assert names == []
    assert stored["sums"] is tensors["sums"]


@pytest.mark.parametrize("names", ["sums", [1], ["missing"], ["floats"], ["sums", "sums"]])
def test_names_that_are_not_those_of_integers_are_refused(names):
    tensors = {"sums": torch.zeros(4, dtype=torch.int32), "floats": torch.zeros(4)}
    with pytest.raises(ValueError, match=r"integers|32-bit"):
        widened(tensors, names)


def test_a_model_takes_half_the_bytes_of_its_sums(tmp_path):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(100, 5)), np.arange(100) % 3
    clf = CLDNetClassifier(random_state=0).fit(X, y)
    clf.save(tmp_path / "whole.cldnet")
    again = CLDNetClassifier.load(tmp_path / "whole.cldnet")
    assert (tmp_path / "whole.cldnet").stat().st_size < 0.55 * clf.footprint().total
    assert again.footprint().bytes == clf.footprint().bytes
    assert np.array_equal(again.decision_function(X), clf.decision_function(X))
    weighted = CLDNetClassifier(random_state=0).fit(X, y, sample_weight=np.full(100, 0.3))
    weighted.save(tmp_path / "weighted.cldnet")
    loaded = CLDNetClassifier.load(tmp_path / "weighted.cldnet")
    assert np.array_equal(loaded.decision_function(X), weighted.decision_function(X))


def test_a_file_that_names_other_tensors_is_refused(tmp_path):
    clf = CLDNetClassifier(random_state=0).fit(np.random.default_rng(0).normal(size=(40, 5)), np.arange(40) % 3)
    clf.save(tmp_path / "model.cldnet")
    tensors, manifest = read(tmp_path / "model.cldnet")
    manifest = json.loads(json.dumps({**manifest, "integers": ["class_weights"]}))
    write(tmp_path / "model.cldnet", tensors, manifest)
    with pytest.raises(ValueError, match="not a valid model"):
        CLDNetClassifier.load(tmp_path / "model.cldnet")
