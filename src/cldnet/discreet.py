"""What can be done about classes with so few examples that their sums tell of one of them: join classes, or add noise."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterable
from typing import Any, Self

import numpy as np

from cldnet.additive import Additive
from cldnet.audit import FEW
from cldnet.device import generator
from cldnet.labels import as_labels

__all__ = ["Discreet"]


class Discreet(Additive, ABC):
    """The part of `cldnet.CLDNetClassifier` that makes its sums tell less of single examples."""

    def join_classes(self, labels: Iterable[Any], into: Any) -> Self:
        """Make several classes one: the model is, exactly, the one that was taught with one label for all their rows.

        Only for the exact solver. A class with few examples no longer has a sum of its own then.

        Parameters
        ----------
        labels : iterable
            Labels of the classes that are no classes of their own any more.
        into : label
            The class that their examples belong to from now on: one that is there, or a new one.

        Examples
        --------
        >>> from cldnet import CLDNetClassifier
        >>> clf = CLDNetClassifier(random_state=0).fit([[0.0, 0.1], [5.0, 5.1], [9.0, 0.2]], ["cat", "emu", "owl"])
        >>> clf.join_classes(["emu", "owl"], into="bird").classes_
        array(['bird', 'cat'], dtype='<U4')
        """
        self._outside_session("join_classes")
        model = self._fitted()
        joined = [label for label in _each(labels) if label != into]
        if not joined:
            raise ValueError("There is nothing to join: name one class or more beside the one that they go into.")
        model.labels.known_rows(joined)
        model.labels.check([into])
        with self._computing():
            work = self._copied(model)
            work = work.join_classes(joined, into)
        self._swap_in(work, model)
        return self

    def add_noise(self, deviation: float, labels: Iterable[Any] | None = None, random_state: int | None = None) -> Self:
        """Move the sums of classes by noise, so that they no longer tell their examples' features.

        The model is, exactly, the one whose examples of a class had all been moved by one random vector, so it stays a
        sound one; that class is recognised less well. Its rows can no longer be handed back with `forget`: use
        `forget_class`. Only for the exact solver. This is not differential privacy: nothing is proven about what can still
        be learned from the sums.

        Parameters
        ----------
        deviation : float
            Standard deviation of the noise in units of a feature, which goes up to 127.
        labels : iterable, optional
            The classes; by default those with fewer than ten examples, which `audit` calls revealing.
        random_state : int, optional
            Seed of the noise; by default it cannot be repeated. Whoever knows it can take the noise off again.

        Examples
        --------
        >>> from cldnet import CLDNetClassifier
        >>> clf = CLDNetClassifier(random_state=0).fit([[0.0, 0.1], [5.0, 5.1], [9.0, 0.2]], ["cat", "emu", "owl"])
        >>> clf.add_noise(5.0, ["emu"]).classes_
        array(['cat', 'emu', 'owl'], dtype='<U3')
        """
        self._outside_session("add_noise")
        model = self._fitted()
        if not (isinstance(deviation, int | float | np.number) and 0 < deviation < float("inf")):
            raise ValueError(f"deviation={deviation!r} should be a positive number, in units of a feature (up to 127).")
        chosen = list(self.audit().revealing) if labels is None else _each(labels)
        if not chosen:
            raise ValueError(
                f"No class has fewer than {FEW} examples, and none was named: name the classes to add noise to."
            )
        model.labels.known_rows(chosen)
        with self._computing():
            work = self._copied(model)
            work.add_noise(chosen, float(deviation), generator(_seed_of(random_state)))
            work.check_finite()
        self._swap_in(work, model)
        return self


def _each(labels: Iterable[Any]) -> list[Any]:
    """Labels that a user named, each once. One string is one label, and a list is asked for: its letters may be labels, too."""
    if isinstance(labels, str | bytes) or not isinstance(labels, Iterable):
        raise ValueError(f"labels={labels!r} should be a list of labels: write [{labels!r}] for that one.")
    return list(dict.fromkeys(as_labels(list(labels)).tolist()))


def _seed_of(random_state: int | None) -> int:
    if random_state is None:
        return int(np.random.SeedSequence().generate_state(1, np.uint64)[0] >> 1)
    whole = isinstance(random_state, int | np.integer) and not isinstance(random_state, bool)
    if not whole or not 0 <= random_state < 2**63:
        raise ValueError(f"random_state={random_state!r} should be None or a whole number from 0 to 2**63 - 1.")
    return int(random_state)
