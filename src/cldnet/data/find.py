"""Where the known data sets lie on this machine, and whether they are whole."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cldnet.data.catalog import KNOWN_SETS, known_set
from cldnet.data.known import KnownSet

if TYPE_CHECKING:
    from cldnet.data.dataset import Dataset, Part

__all__ = ["Found", "cache_folder", "examine", "find_in", "find_set", "load_set", "search_path", "survey"]

_LOGGER = logging.getLogger("cldnet")
#: Where Debian's packages of data sets put them.
_SYSTEM = Path("/usr/share/datasets")


def cache_folder() -> Path:
    """The user's own folder for data that were downloaded: ``cldnet/data`` in ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "cldnet" / "data"


def search_path(data: Path | None = None) -> list[Path]:
    """Folders in which data sets are looked for, one after the other.

    A folder that the user names; those of the environment variable ``CLDNET_DATA``, separated as in ``PATH``; Debian's
    ``/usr/share/datasets``; `cache_folder`.

    Examples
    --------
    >>> search_path(Path("photos"))[0].name
    'photos'
    """
    named = [] if data is None else [data]
    named += [Path(entry) for entry in os.environ.get("CLDNET_DATA", "").split(os.pathsep) if entry.strip()]
    return list(dict.fromkeys([*(folder.expanduser() for folder in named), _SYSTEM, cache_folder()]))


def find_in(known: KnownSet, root: Path) -> Path | None:
    """Find a set in a data folder, or in the folder itself: the first place with all of its files, else the first with some.

    Examples
    --------
    >>> find_in(known_set("mnist"), Path("nowhere")) is None
    True
    """
    named = [above / folder for above in (root, root / known.name) for folder in known.folders]
    partly = []
    for folder in [*named, root]:
        missing = _missing(known, folder)
        if missing is None or (folder == root and not _may_be(known, root, len(missing))):
            continue
        if not missing:
            return folder
        partly.append(folder)
    return partly[0] if partly else None


def find_set(name: str, data: Path | None = None) -> Path | None:
    """Find the folder with a set's files on the `search_path`: the first that has all of them, else the first with some."""
    known = known_set(name)
    if data is not None and (named := find_in(known, Path(data).expanduser())) is not None:
        return named  # a folder that the user named is not passed over because a file is missing
    found = [folder for root in search_path(data) if (folder := find_in(known, root)) is not None]
    return next((folder for folder in found if not _missing(known, folder)), found[0] if found else None)


def load_set(name: str, data: Path | None = None, **options: Any) -> Dataset:
    """Read a known data set from where it lies.

    Parameters
    ----------
    name : str
        Out of `cldnet.data.catalog.KNOWN_SETS`.
    data : Path, optional
        Where to look first: see `search_path`.
    **options
        Passed on to the set's reader.

    Raises
    ------
    FileNotFoundError
        If it is not there, or not all of it; the text says where was looked, and what to do.
    ValueError
        If it cannot be read, or is another known set under this name.
    """
    known, folder = known_set(name), find_set(name, data)
    mend = f"Get it with: cldnet data get {name}. Or say where it lies with --data DIR or CLDNET_DATA=DIR."
    if folder is None:
        places = ", ".join(str(place) for place in search_path(data))
        raise FileNotFoundError(f"{name} was not found in {places}. {mend}")
    missing = _missing(known, folder)
    if missing:
        raise FileNotFoundError(f"{name} in {folder} is not whole: {_lacks(missing)}. {mend}")
    dataset = known.read(folder, **options)
    if known.digest is not None and not options and dataset.digest != known.digest:
        twin = next((other.name for other in KNOWN_SETS.values() if other.digest == dataset.digest), None)
        if twin is not None:
            raise ValueError(f"{folder} holds {twin}, not {name}: rename it, or say where {name} lies with --data DIR.")
        _LOGGER.warning("%s holds other data than the published %s.", folder, name)
    return dataset


@dataclass(frozen=True)
class Found:
    """What `survey` has to say about a known set.

    Attributes
    ----------
    name : str
    folder : Path or None
        Where it lies.
    state : str
        ``"whole"``, ``"other data"`` (they can be read and are not the published ones), ``"not found"``, or ``"damaged: "``
        with a sentence.
    train, test, classes : int
        How many there are; 0 where that is not known.
    per_class : dict
        From each class's name to its training and test examples.
    digest : str or None
        None where nothing was read: photos are hashed when they are first used.
    means : tuple of float
        Mean of every channel of the training pixels, from 0 to 1; empty where nothing was read.
    """

    name: str
    folder: Path | None
    state: str
    train: int = 0
    test: int = 0
    classes: int = 0
    per_class: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    digest: str | None = None
    means: tuple[float, ...] = ()


def survey(data: Path | None = None) -> Iterator[Found]:
    """Look for every known set and examine what is there, one after the other."""
    for name, known in KNOWN_SETS.items():
        folder = find_set(name, data)
        yield Found(name, None, "not found") if folder is None else examine(known, folder)


def examine(known: KnownSet, folder: Path) -> Found:
    """Say whether a folder holds a set whole: arrays are read, photos are counted."""
    missing = _missing(known, folder)
    if missing is None or missing:
        return Found(known.name, folder, f"damaged: {_lacks(missing or known.layouts[0])}")
    try:
        return _count_photos(known, folder) if known.photos else _read_arrays(known, folder)
    except (OSError, ValueError) as error:
        return Found(known.name, folder, f"damaged: {str(error).splitlines()[0]}")


def _read_arrays(known: KnownSet, folder: Path) -> Found:
    dataset = known.read(folder)
    state = "whole" if dataset.digest == known.digest else "other data"
    found = _count(
        known, folder, state, dataset.train.y.tolist(), [] if dataset.test is None else dataset.test.y.tolist()
    )
    return replace(found, digest=dataset.digest, means=_means(dataset.train))


def _count(known: KnownSet, folder: Path, state: str, train: Iterable[Any], test: Iterable[Any]) -> Found:
    """What was found, from the labels of both parts."""
    trains, tests = Counter(train), Counter(test)
    labels = sorted(trains | tests)
    per_class = {str(label): (trains[label], tests[label]) for label in labels}
    return Found(known.name, folder, state, trains.total(), tests.total(), len(labels), per_class)


def _means(part: Part) -> tuple[float, ...]:
    import torch  # noqa: PLC0415  (heavy, and a search needs none of it)

    x = part.x if part.x.ndim == 4 else part.x.flatten(1)[:, None]
    # In blocks, because torch widens numbers before it adds them up.
    sums = torch.stack([block.flatten(2).sum(dim=(0, 2), dtype=torch.int64) for block in x.split(1024)]).sum(0)
    return tuple(total / (255 * x[:, 0].numel()) for total in sums.tolist())


def _count_photos(known: KnownSet, folder: Path) -> Found:
    from cldnet.data.images.tree import list_photos  # noqa: PLC0415  (brings torch)

    photos = list_photos(folder).photos
    labels = [[photo.label for photo in photos if photo.test == test] for test in (False, True)]
    found = _count(known, folder, "whole", *labels)
    fault = next((f"{folder / photo.name}: {photo.fault}" for photo in photos if photo.fault is not None), None)
    if fault is None and (found.train, found.test, found.classes) != (known.train, known.test, known.classes):
        fault = (
            f"{folder} has {found.train:,} + {found.test:,} images in {found.classes} classes, "
            f"and the whole set has {known.train:,} + {known.test:,} in {known.classes}"
        )
    return found if fault is None else replace(found, state=f"damaged: {fault}.")


def _missing(known: KnownSet, folder: Path) -> tuple[str, ...] | None:
    """What a folder lacks of the format that it has most of; None if it has nothing of any."""
    fewest: tuple[str, ...] | None = None
    for layout in known.layouts:
        missing = tuple(names for names in layout if not any(_is_there(folder, name) for name in names.split("|")))
        if len(missing) < len(layout) and (fewest is None or len(missing) < len(fewest)):
            fewest = missing
    return fewest


def _is_there(folder: Path, name: str) -> bool:
    if name == "*/":
        try:
            with os.scandir(folder) as entries:
                return any(entry.is_dir() for entry in entries)
        except OSError:
            return False
    # Not the methods of Path, which raise where a folder may not be entered.
    return os.path.isdir(folder / name) if name.endswith("/") else os.path.isfile(folder / name)


def _may_be(known: KnownSet, root: Path, missing: int) -> bool:
    """Whether a folder that the user named is the set's own: by its name, or by its files where its name says nothing."""
    if _is_named_for(known, root):
        return True
    files = [layout for layout in known.layouts if "*/" not in layout]
    another = any(_is_named_for(other, root) for other in KNOWN_SETS.values())
    return not another and any(2 * missing < len(layout) for layout in files)


def _is_named_for(known: KnownSet, root: Path) -> bool:
    path = root.absolute().as_posix()
    return any(path.endswith(f"/{folder}") for folder in known.folders)


def _lacks(missing: tuple[str, ...]) -> str:
    names = [names.split("|")[0].rstrip("/") for names in missing]
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} missing"
