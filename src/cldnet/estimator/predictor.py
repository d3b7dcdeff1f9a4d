"""Models that are loaded to predict photos or sentences only, without scikit-learn, whose import takes longer than that."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cldnet.data.arrays import layout
from cldnet.data.sentences import encode_sentences
from cldnet.device import resolve_device, threads
from cldnet.estimator.model import Model, load_model


@dataclass(frozen=True)
class Predictor:
    """A model out of a file, for predictions of images in bytes, or of sentences, as strings or as rows of bytes.

    They equal those of the classifier that wrote it.

    Examples
    --------
    >>> import tempfile
    >>> from cldnet import CLDNetClassifier
    >>> images = np.arange(0, 200, 50, dtype=np.uint8)[:, None, None].repeat(9, 1).reshape(4, 3, 3)
    >>> clf = CLDNetClassifier(random_state=0).fit(images, ["night", "night", "day", "day"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     clf.save(f"{folder}/skies")
    ...     predictor = Predictor.load(f"{folder}/skies")
    >>> predictor.classes[predictor.predict_proba(images).argmax(axis=1)].tolist()
    ['night', 'night', 'day', 'day']
    """

    model: Model
    n_threads: int | None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Predictor:
        """Load a model whose backbone is the library's own, onto the device that it was saved for."""
        model, parameters = load_model(path, to_predict=True)
        model.learner.to(resolve_device(parameters.get("device", "auto")))
        return cls(model, parameters["n_threads"])

    @property
    def classes(self) -> NDArray[Any]:
        """The labels, sorted, in the order of the columns of all scores."""
        return self.model.labels.classes

    def predict_proba(self, x: NDArray[np.uint8] | Sequence[str]) -> NDArray[np.float64]:
        """Probability of every class for inputs, columns as `classes`."""
        inputs = self._checked(x)
        with threads(self.n_threads):
            return self.model.probabilities(self.model.scores(inputs))

    def predict_known(self, x: NDArray[np.uint8] | Sequence[str]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """`predict_proba`, and how well each input fits the classes known: see `CLDNetClassifier.known_probability`."""
        inputs = self._checked(x)
        with threads(self.n_threads):
            scores, known = self.model.scores_and_known(inputs)
            return self.model.probabilities(scores), known

    def _checked(self, x: NDArray[np.uint8] | Sequence[str]) -> Tensor:
        if not len(self.classes):
            raise ValueError("This model has forgotten all its classes: teach it some first.")
        if not isinstance(x, np.ndarray):
            self.model.inputs.check_text(x)
            return encode_sentences(x)
        inputs = layout(torch.from_numpy(x), self.model.parameters.input_shape)
        self.model.inputs.check(inputs)
        return inputs
