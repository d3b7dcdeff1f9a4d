"""What is known about a published data set, and how a user gets it without the help of this program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cldnet.data.dataset import Dataset

__all__ = ["Download", "KnownSet"]


@dataclass(frozen=True)
class Download:
    """One file to download.

    Attributes
    ----------
    url : str
        The official address, or the one that serves it today.
    checksum : str
        ``"md5:…"`` or ``"sha256:…"``, as published.
    size : int
        Bytes.
    mirrors : tuple of str
        Further addresses of the same bytes.
    """

    url: str
    checksum: str
    size: int
    mirrors: tuple[str, ...] = ()

    @property
    def filename(self) -> str:
        """The last part of the address."""
        return self.url.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class KnownSet:
    """A data set that CLDNet knows by name.

    Attributes
    ----------
    name, title : str
        What it is called on the command line, and in full.
    folders : tuple of str
        Where it may lie below a data folder; the first is where `cldnet data get` puts it.
    layouts : tuple of tuple of str
        What such a folder must hold, one tuple a format. A bar stands between names that serve equally well, a slash at the
        end marks a folder.
    read : callable
        The reader: from the folder and options to a data set.
    downloads : tuple of Download
    home, terms, hint : str
        Its page; its licence and where else it may come from, each in a short sentence.
    size : int
        Bytes that it takes on disk once unpacked, about.
    train, test, classes : int
        How many it has.
    digest : str, optional
        The digest of the official data, read without options. None for photos: their pixels depend on the decoder.
    photos : bool
        Whether it is a tree of photos, which take long to read.
    """

    name: str
    title: str
    folders: tuple[str, ...]
    layouts: tuple[tuple[str, ...], ...]
    read: Callable[..., Dataset]
    downloads: tuple[Download, ...]
    home: str
    terms: str
    size: int
    train: int
    test: int
    classes: int
    digest: str | None = None
    photos: bool = False
    hint: str = ""

    @property
    def packed(self) -> bool:
        """Whether its download is an archive that has to be unpacked."""
        return self.downloads[0].filename.endswith((".tar", ".tgz", ".tar.gz", ".zip"))

    def by_hand(self, dest: Path) -> str:
        """Say how to get the set without the help of this program.

        Examples
        --------
        >>> from cldnet.data.catalog import known_set
        >>> print(known_set("cifar-10").by_hand(Path("data")))
        To get cifar-10 by hand, on a machine with a network:
          1. Download
             https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz
               170,052,171 bytes, md5 c32a1d4ab5d03f1284b67883e8d87530
          2. Put it into data and unpack it there: tar -xzf cifar-10-binary.tar.gz
          3. Check it: cldnet data list --data data
        """
        lines = [f"To get {self.name} by hand, on a machine with a network:", "  1. Download"]
        for file in self.downloads:
            lines.append(f"     {' or '.join((file.url, *file.mirrors))}")
            lines.append(f"       {file.size:,} bytes, {file.checksum.replace(':', ' ')}")
        if self.packed:
            lines.append(f"  2. Put it into {dest} and unpack it there: {_command(self.downloads[0].filename)}")
        else:
            lines.append(
                f"  2. Put all {len(self.downloads)} into {dest / self.folders[0]}; they need not be unpacked."
            )
        lines.append(f"  3. Check it: cldnet data list --data {dest}")
        return "\n".join([*lines, self.hint] if self.hint else lines)


def _command(filename: str) -> str:
    if filename.endswith(".zip"):
        return f"unzip {filename}"
    return f"tar -x{'' if filename.endswith('.tar') else 'z'}f {filename}"
