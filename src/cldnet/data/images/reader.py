"""A folder of photos in, a data set out."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from cldnet.data.dataset import Dataset
from cldnet.data.images.build import Progress, build, open_parts
from cldnet.data.images.cache import Cache, Entry, default_cache
from cldnet.data.images.decode import pillow
from cldnet.data.images.tree import Tree, list_photos
from cldnet.data.images.workers import usable_cpus

__all__ = ["read_images"]

#: Bad files that a message names; it counts the others.
_NAMED = 10

_logger = logging.getLogger("cldnet")


def read_images(
    folder: Path,
    *,
    name: str | None = None,
    size: int = 224,
    resize: int | None = None,
    on_bad: Literal["skip", "stop"] = "stop",
    cache: Path | None = None,
    workers: int | None = None,
    on_progress: Progress | None = None,
) -> Dataset:
    """Read a folder of photos, decoded once and kept in a cache for as long as no file changes.

    Parameters
    ----------
    folder : Path
        One folder a class, perhaps within ``train`` and ``test``; ImageNet-R, Tiny-ImageNet-200 or CUB-200-2011 as published.
    name : str, optional
        Name of the data set; without one, that of the folder.
    size : int
        Height and width of the images.
    resize : int, optional
        Length of an image's shorter side before its centre is cut out; without one, 256/224 of ``size``, as ViT needs.
    on_bad : {"stop", "skip"}
        Whether files that cannot be read are refused, all of them named, or left out with a warning.
    cache : Path, optional
        Folder for decoded images; without one, ``cldnet/images`` in ``$XDG_CACHE_HOME`` or ``~/.cache``.
    workers : int, optional
        Processes that decode; without one, as many as there are processors to use.
    on_progress : callable, optional
        Called with the number of files that are done and of all, while there is something to decode.

    Returns
    -------
    Dataset
        Images ``(n, 3, size, size)`` as uint8, resident or mapped, and the names of their classes. Without a test part if the
        layout has none.

    Examples
    --------
    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as place:
    ...     for label, colour in {"cat": "orange", "dog": "brown"}.items():
    ...         (Path(place) / "photos" / label).mkdir(parents=True)
    ...         Image.new("RGB", (40, 30), colour).save(Path(place) / "photos" / label / "1.png")
    ...     data = read_images(Path(place) / "photos", size=16, cache=Path(place) / "cache")
    >>> data.name, data.train.x.shape, data.train.y
    ('photos', torch.Size([2, 3, 16, 16]), array(['cat', 'dog'], dtype='<U3'))
    """
    size, resize = _checked(size, resize, on_bad, workers)
    pillow()
    tree = list_photos(Path(folder).expanduser())
    if tree.ignored:
        _logger.info("%d files under %r were passed over: not named like images.", tree.ignored, str(folder))
    _report("gaps", list(tree.gaps), tree, on_bad)
    place = Cache(_outside(tree.folder, default_cache() if cache is None else Path(cache)), tree, size, resize)
    entry = place.load() or build(place, workers or usable_cpus(), on_progress)
    _report("bad files", [f"{bad.path!r} ({bad.reason})" for bad in entry.bad], tree, on_bad)
    _refuse_lost_classes(tree, entry)
    train, *test = open_parts(place.pixels, entry.photos, size, entry.digests)
    return Dataset(name or _name(tree.folder), train, test[0] if test else None)


def _checked(size: int, resize: int | None, on_bad: str, workers: int | None) -> tuple[int, int]:
    """Refuse arguments that make no sense, and return both lengths."""
    for key, value in {"size": size, "resize": resize, "workers": workers}.items():
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= 1
        if not (whole or (value is None and key != "size")):
            raise ValueError(f"{key}={value!r} should be a whole number of at least 1.")
    if on_bad not in ("skip", "stop"):
        raise ValueError(f"on_bad={on_bad!r} is not known; use 'skip' or 'stop'.")
    if resize is None:
        return int(size), round(int(size) * 256 / 224)
    if resize < size:
        raise ValueError(f"resize={resize} is less than size={size}: the centre to cut out would not fit.")
    return int(size), int(resize)


def _outside(folder: Path, cache: Path) -> Path:
    """Refuse a cache within the folder of photos, where it would be taken for a class the next time."""
    cache, within = cache.expanduser(), os.path.realpath(folder)
    inner = os.path.relpath(os.path.realpath(cache), within).split(os.sep)
    if inner[0] != os.pardir and not any(name.startswith(".") and name != os.curdir for name in inner):
        raise ValueError(f"cache={str(cache)!r} lies within the folder of photos, {str(folder)!r}: name one outside.")
    return cache


def _report(kind: str, faults: Sequence[str], tree: Tree, on_bad: str) -> None:
    """Name what is wrong with some files: in an error, or in a warning if the user goes on without them."""
    if not faults:
        return
    named = ", ".join(faults[:_NAMED]) + (f", and {len(faults) - _NAMED} more" if len(faults) > _NAMED else "")
    if kind == "gaps":
        message = f"{str(tree.folder)!r} is not complete: {named}."
    else:
        message = f"{len(faults)} of {len(tree.photos)} images under {str(tree.folder)!r} cannot be read: {named}."
    if on_bad == "stop":
        raise ValueError(f'{message} Mend or remove them, or go on without them: --on-bad skip (on_bad="skip").')
    _logger.warning("%s Going on without them.", message)


def _refuse_lost_classes(tree: Tree, entry: Entry) -> None:
    """Refuse to go on if a class has no training image left, or the test part none at all."""
    for test in (False, True):
        kept = {photo.label for photo in entry.photos if photo.test is test}
        lost = sorted({photo.label for photo in tree.photos if photo.test is test} - kept)
        if lost and (not test or not kept):
            part = "test" if test else "training"
            raise ValueError(
                f"No {part} image of class {lost[0]!r} in {str(tree.folder)!r} can be read"
                f"{f', nor of {len(lost) - 1} other classes' if lost[1:] else ''}: mend the files, or remove the class."
            )
        if lost:
            _logger.warning(
                "No test image of %d classes can be read, such as %r: they are not tested.", len(lost), lost[0]
            )


def _name(folder: Path) -> str:
    """Name of a folder, in letters that every file can hold."""
    return os.fsencode(os.path.basename(os.path.abspath(folder))).decode("utf-8", "replace") or "images"
