"""Downloads that are whole or not there, and the known data sets made of them."""

from __future__ import annotations

import logging
import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cldnet.data.catalog import known_set
from cldnet.data.find import examine, find_in
from cldnet.data.known import Download, KnownSet
from cldnet.data.partfile import PartFile, file_checksum
from cldnet.data.transfer import Elsewhere, WrongFile, check_address, insist
from cldnet.data.unpack import unpack

__all__ = ["download", "get_set"]

_LOGGER = logging.getLogger("cldnet")


def download(
    url: str,
    target: Path,
    *,
    checksum: str,
    mirrors: tuple[str, ...] = (),
    size: int | None = None,
    timeout: float = 30,
    retries: int = 4,
    pause: float = 1.0,
    on_progress: Callable[[int, int | None], None] | None = None,
) -> Path:
    """Download a file; `target` is there afterwards only if every byte of it is right.

    What has come lies in ``target.part``. It is kept when the network fails, the program is stopped or killed, and the next
    call goes on from there.

    Parameters
    ----------
    url : str
        An address of the web, ``http://`` or ``https://``.
    target : Path
        The file to make. If it is there with the right checksum, nothing is done.
    checksum : str
        ``"md5:…"`` or ``"sha256:…"``.
    mirrors : tuple of str
        Addresses of the same file, tried one after the other when `url` does not serve it.
    size : int, optional
        Bytes of the file. An answer of another size is not even downloaded.
    timeout : float
        Seconds without a byte after which a connection is given up.
    retries : int
        Further attempts at an address that fails for a reason which may pass.
    pause : float
        Seconds before the first of them; each further pause is twice as long, up to half a minute.
    on_progress : callable, optional
        Called with the bytes that are there and the bytes of the whole file, where they are known.

    Raises
    ------
    ConnectionError
        If no address could serve the file.
    ValueError
        If what came had another checksum.
    OSError
        If the file cannot be written, or another process is downloading it.

    Examples
    --------
    >>> download("ftp://example.org/a.gz", Path("a.gz"), checksum="md5:d41d8cd98f00b204e9800998ecf8427e")
    Traceback (most recent call last):
    ...
    ValueError: 'ftp://example.org/a.gz' is not an address that begins with http:// or https://.
    """
    addresses = (url, *mirrors)
    for address in addresses:
        check_address(address)
    part = PartFile(target, checksum)
    if target.is_file() and file_checksum(target, part.algorithm) == checksum:
        return target
    wrong: str | None = None
    reasons = []
    with part:
        for address in addresses:
            try:
                insist(part, address, size, timeout, retries, pause, on_progress or (lambda done, total: None))
            except Elsewhere as reason:
                reasons.append(f"{address} {reason}")
            except WrongFile as reason:
                wrong = str(reason)
                reasons.append(f"{address} sent a file with checksum {wrong}")
            else:
                part.finish()
                return target
    sentence = f"{target.name} could not be downloaded: {'; '.join(reasons)}."
    if wrong is not None:
        raise ValueError(f"{sentence} Expected was {checksum}: the file was changed or damaged on its way.")
    raise ConnectionError(sentence)


def get_set(
    name: str,
    dest: Path,
    *,
    on_progress: Callable[[str, int, int | None], None] | None = None,
    base_url: str | None = None,
    timeout: float = 30,
    retries: int = 4,
    pause: float = 1.0,
) -> Path:
    """Download a known data set, unpack it, and check it by reading it.

    Files that lie in `dest` already, an archive that was copied there by hand for example, are not downloaded again. All
    grows in a hidden folder in `dest`; what is whole goes to its place by a rename.

    Parameters
    ----------
    name : str
        Out of `cldnet.data.catalog.KNOWN_SETS`.
    dest : Path
        The data folder; the set becomes a folder in it.
    on_progress : callable, optional
        Called with a file's name, the bytes of it that are there, and all its bytes.
    base_url : str, optional
        Take the files from here instead of their official addresses; their checksums must be the same.
    timeout, retries, pause
        As in `download`.

    Returns
    -------
    Path
        The folder with the set's files.

    Raises
    ------
    ConnectionError
        If a file could not be downloaded; the text says how to get it by hand.
    FileExistsError
        If something else lies where the set would go.

    Examples
    --------
    >>> get_set("minst", Path("data"))
    Traceback (most recent call last):
    ...
    ValueError: There is no data set 'minst'. Did you mean 'mnist'?
    """
    known = known_set(name)
    found = find_in(known, dest)
    state = "not found" if found is None else examine(known, found).state
    if found is not None and state == "whole":
        return found
    place = dest / known.folders[0]
    if state == "other data" or (place.exists() and place != found):
        raise FileExistsError(f"{found or place} holds other data than {name}. Move it away, or choose another folder.")
    working = dest / f".{name}.download"
    job = _Job(known, dest, found, working, partial(download, timeout=timeout, retries=retries, pause=pause))
    home = job.gather(base_url, on_progress or (lambda label, done, total: None))
    result = examine(known, home)
    if result.state != "whole":
        shutil.rmtree(working / "unpacked")
        raise ValueError(f"What was downloaded for {name} is {result.state}")
    if place.exists():
        aside = place.rename(place.with_name(f"{place.name}.damaged-{secrets.token_hex(4)}"))
        _LOGGER.warning("%s was damaged; it is now %s and can be deleted.", place, aside)
    home.rename(place)
    shutil.rmtree(working)
    return place


@dataclass(frozen=True)
class _Job:
    """What it takes to bring a set's files together: what it is, where it goes, what is there, and where it grows."""

    known: KnownSet
    dest: Path
    found: Path | None
    working: Path
    download: Callable[..., Path]

    def gather(self, base_url: str | None, on_progress: Callable[[str, int, int | None], None]) -> Path:
        """Download what is not there, unpack what is packed, and return the folder that all of it is in."""
        unpacked = self.working / "unpacked"
        home = unpacked / self.known.folders[0]
        for file in self.known.downloads:
            at_hand = self._at_hand(file)
            target = (self.working if self.known.packed else home) / file.filename
            if at_hand is None:
                self._download(file, target, base_url, on_progress)
            elif not self.known.packed and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(at_hand, target)
            if self.known.packed:
                on_progress(f"unpacking {file.filename}", 0, None)
                shutil.rmtree(unpacked, ignore_errors=True)  # of a call that was killed
                unpack(at_hand or target, unpacked)
        on_progress(f"checking {self.known.name}", 0, None)
        return home

    def _at_hand(self, file: Download) -> Path | None:
        """The file, where it lies in the data folder already and is right."""
        folders = [self.dest] if self.found is None else [self.dest, self.found]
        algorithm = file.checksum.partition(":")[0]
        paths = [folder / file.filename for folder in folders if (folder / file.filename).is_file()]
        return next((path for path in paths if file_checksum(path, algorithm) == file.checksum), None)

    def _download(
        self,
        file: Download,
        target: Path,
        base_url: str | None,
        on_progress: Callable[[str, int, int | None], None],
    ) -> None:
        addresses = (file.url, *file.mirrors) if base_url is None else (f"{base_url.rstrip('/')}/{file.filename}",)
        try:
            self.download(
                addresses[0],
                target,
                mirrors=addresses[1:],
                checksum=file.checksum,
                size=file.size,
                on_progress=partial(on_progress, file.filename),
            )
        except ConnectionError as error:
            raise ConnectionError(f"{error}\n{self.known.by_hand(self.dest)}") from error
