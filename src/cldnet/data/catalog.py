"""The data sets that CLDNet knows by name: where they come from, where they lie, and whether they are whole."""

from __future__ import annotations

import logging
import os
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cldnet.text import nearest_names

if TYPE_CHECKING:
    from cldnet.data.dataset import Dataset, Part

_LOGGER = logging.getLogger("cldnet")
#: Where Debian's packages install data sets.
_SYSTEM = Path("/usr/share/datasets")


@dataclass(frozen=True)
class Download:
    """One file to download: its official URL, its published checksum (``"md5:…"`` or ``"sha256:…"``), its size in bytes."""

    url: str
    checksum: str
    size: int
    mirrors: Sequence[str] = ()

    @property
    def filename(self) -> str:
        """The last part of the URL."""
        return self.url.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class KnownSet:
    """A published data set.

    ``folders`` are the places where it may lie below a data folder; `cldnet data get` uses the first. ``layouts`` are the
    files that such a folder must hold, one list per format; ``|`` separates alternatives, a trailing slash marks a folder.
    ``digest`` is that of the official data, read without options; None for photos, whose pixels depend on the decoder.
    """

    name: str
    title: str
    folders: Sequence[str]
    layouts: Sequence[Sequence[str]]
    downloads: Sequence[Download]
    home: str
    terms: str
    train: int
    test: int
    classes: int
    digest: str | None = None
    photos: bool = False
    hint: str = ""

    def read(self, folder: Path, **options: Any) -> Dataset:
        """Read the set from its folder. Readers are imported here, so that listing names stays fast."""
        if self.photos:
            from cldnet.data.images.cache import read_images  # noqa: PLC0415

            return read_images(folder, name=self.name, **options)
        from cldnet.data.published import read_cifar10, read_cifar100, read_clinc150, read_mnist  # noqa: PLC0415

        if self.name == "clinc150":
            return read_clinc150(folder, **options)
        if self.name.startswith("cifar"):
            return read_cifar10(folder) if self.classes == 10 else read_cifar100(folder, **options)
        return read_mnist(folder, self.name)

    def by_hand(self, dest: Path) -> str:
        """Explain how to download the set manually."""
        lines = [f"To get {self.name} by hand, on a machine with a network:", "  1. Download"]
        for file in self.downloads:
            lines.append(f"     {' or '.join((file.url, *file.mirrors))}")
            lines.append(f"       {file.size:,} bytes, {file.checksum.replace(':', ' ')}")
        again = f"cldnet data get {self.name} --data {dest}"
        lines.append(f"  2. Put what you downloaded into {dest}; do not unpack it.")
        lines.append(f"  3. Run this command again, which unpacks and checks it: {again}")
        return "\n".join([*lines, self.hint] if self.hint else lines)


def known_set(name: str) -> KnownSet:
    """Look up a data set by name."""
    if name not in KNOWN_SETS:
        raise ValueError(f"There is no data set {name!r}. {nearest_names(name, KNOWN_SETS)}")
    return KNOWN_SETS[name]


#: The known sets by name.
KNOWN_SETS: Mapping[str, KnownSet] = {
    name: KnownSet(name, **entry | {"downloads": [Download(**file) for file in entry["downloads"]]})
    for name, entry in tomllib.loads(Path(__file__).with_name("known_sets.toml").read_text("utf-8")).items()
}


def cache_folder() -> Path:
    """Return the folder for downloaded data: ``cldnet/data`` in ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "cldnet" / "data"


def search_path(data: Path | None = None) -> list[Path]:
    """List the folders to search: ``data``, ``CLDNET_DATA`` (separated as in ``PATH``), Debian's folder, `cache_folder`."""
    named = [] if data is None else [data]
    named += [Path(entry) for entry in os.environ.get("CLDNET_DATA", "").split(os.pathsep) if entry.strip()]
    return list(dict.fromkeys([*(folder.expanduser() for folder in named), _SYSTEM, cache_folder()]))


def find_in(known: KnownSet, root: Path) -> Path | None:
    """Find a set in a data folder, or in the folder itself: the first place with all its files, else the first with some."""
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
    """Find the folder of a set on the `search_path`: the first with all its files, else the first with some."""
    known = known_set(name)
    if data is not None and (named := find_in(known, Path(data).expanduser())) is not None:
        return named  # never skip a folder that the user named because a file is missing
    found = [folder for root in search_path(data) if (folder := find_in(known, root)) is not None]
    return next((folder for folder in found if not _missing(known, folder)), found[0] if found else None)


def load_set(name: str, data: Path | None = None, **options: Any) -> Dataset:
    """Read a known data set from this machine; ``options`` go to its reader."""
    known, folder = known_set(name), find_set(name, data)
    advice = f"Get it with: cldnet data get {name}. Or say where it lies with --data DIR or CLDNET_DATA=DIR."
    if folder is None:
        places = ", ".join(str(place) for place in search_path(data))
        raise FileNotFoundError(f"{name} was not found in {places}. {advice}")
    missing = _missing(known, folder)
    if missing:
        raise FileNotFoundError(f"{name} in {folder} is incomplete: {_say_missing(missing)}. {advice}")
    dataset = known.read(folder, **options)
    if known.digest is not None and not options and dataset.digest != known.digest:
        twin = next((other.name for other in KNOWN_SETS.values() if other.digest == dataset.digest), None)
        if twin is not None:
            raise ValueError(f"{folder} holds {twin}, not {name}: rename it, or say where {name} lies with --data DIR.")
        _LOGGER.warning("%s holds other data than the published %s.", folder, name)
    return dataset


@dataclass(frozen=True)
class SetStatus:
    """What `examine` found out about a known set.

    ``state`` is ``"whole"``, ``"other data"`` (readable, but not the published data), ``"not found"``, or ``"damaged: "``
    and why. Counts are 0 if unknown; ``per_class`` has the numbers of training and test samples. ``digest`` and ``means``
    (of every channel of the training pixels, from 0 to 1) are missing for photos, which are hashed when first used;
    sentences have no means.
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


def examine(known: KnownSet, folder: Path) -> SetStatus:
    """Check whether a folder holds a complete set: arrays are read, photos are counted."""
    missing = _missing(known, folder)
    if missing is None or missing:
        return SetStatus(known.name, folder, f"damaged: {_say_missing(missing or known.layouts[0])}")
    try:
        if known.photos:
            return _count_photos(known, folder)
        dataset = known.read(folder)
    except (OSError, ValueError) as error:
        return SetStatus(known.name, folder, f"damaged: {str(error).splitlines()[0]}")
    state = "whole" if dataset.digest == known.digest else "other data"
    test = [] if dataset.test is None else dataset.test.y.tolist()
    status = _count(known, folder, state, dataset.train.y.tolist(), test)
    return replace(status, digest=dataset.digest, means=_means(dataset.train))


def _count(known: KnownSet, folder: Path, state: str, train: Iterable[Any], test: Iterable[Any]) -> SetStatus:
    trains, tests = Counter(train), Counter(test)
    labels = sorted(trains | tests)
    per_class = {str(label): (trains[label], tests[label]) for label in labels}
    return SetStatus(known.name, folder, state, trains.total(), tests.total(), len(labels), per_class)


def _means(part: Part) -> tuple[float, ...]:
    if part.text:
        return ()
    channels = part.x.shape[1] if part.x.ndim == 4 else 1
    pixels = part.x.numpy().reshape(len(part), channels, -1)  # torch would widen all numbers before it adds them up
    return tuple(total / (255 * pixels[:, 0].size) for total in pixels.sum(axis=(0, 2), dtype="int64").tolist())


def _count_photos(known: KnownSet, folder: Path) -> SetStatus:
    from cldnet.data.images.folders import list_photos  # noqa: PLC0415

    photos = list_photos(folder).photos
    labels = [[photo.label for photo in photos if photo.test == test] for test in (False, True)]
    status = _count(known, folder, "whole", *labels)
    fault = next((f"{folder / photo.name}: {photo.fault}" for photo in photos if photo.fault is not None), None)
    if fault is None and (status.train, status.test, status.classes) != (known.train, known.test, known.classes):
        fault = (
            f"{folder} has {status.train:,} + {status.test:,} images in {status.classes} classes, "
            f"and the whole set has {known.train:,} + {known.test:,} in {known.classes}"
        )
    return status if fault is None else replace(status, state=f"damaged: {fault}.")


def _missing(known: KnownSet, folder: Path) -> Sequence[str] | None:
    """The files that a folder lacks of its most complete format; None if it has no file of any."""
    fewest: Sequence[str] | None = None
    for layout in known.layouts:
        missing = [names for names in layout if not any(_exists(folder, name) for name in names.split("|"))]
        if len(missing) < len(layout) and (fewest is None or len(missing) < len(fewest)):
            fewest = missing
    return fewest


def _exists(folder: Path, name: str) -> bool:
    if name == "*/":
        try:
            with os.scandir(folder) as entries:
                return any(entry.is_dir() for entry in entries)
        except OSError:
            return False
    # os.path, because the methods of Path raise if a folder may not be entered.
    return os.path.isdir(folder / name) if name.endswith("/") else os.path.isfile(folder / name)


def _may_be(known: KnownSet, root: Path, missing: int) -> bool:
    """Whether a folder that the user named is the set's own: by its name, or by its files if the name says nothing."""
    path = root.absolute().as_posix()
    owners = [other for other in KNOWN_SETS.values() if any(path.endswith(f"/{folder}") for folder in other.folders)]
    layouts = [layout for layout in known.layouts if "*/" not in layout]
    return known in owners or (not owners and any(2 * missing < len(layout) for layout in layouts))


def _say_missing(missing: Sequence[str]) -> str:
    names = [names.split("|")[0].rstrip("/") for names in missing]
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} missing"
