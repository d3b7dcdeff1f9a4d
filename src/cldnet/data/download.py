"""Download known data sets: resumable, verified by checksum, unpacked safely."""

from __future__ import annotations

import hashlib
import http.client
import logging
import re
import secrets
import shutil
import stat
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from filelock import FileLock, Timeout

from cldnet.data.catalog import Download, KnownSet, examine, find_in, known_set
from cldnet.version import __version__

#: Limits for the content of an archive: three times the largest known set.
MAX_BYTES = 8 << 30
MAX_MEMBERS = 500_000

_LOGGER = logging.getLogger("cldnet")
_CHECKSUM = re.compile("md5:[0-9a-f]{32}|sha256:[0-9a-f]{64}")
_CHUNK = 1 << 16
#: Status codes below 500 that may be gone at the next attempt.
_TEMPORARY = (408, 425, 429)


def file_checksum(path: Path, algorithm: str) -> str:
    """Checksum of a file, as ``"md5:…"`` or ``"sha256:…"``."""
    with path.open("rb") as file:  # MD5 guards against accidents here; most sets publish nothing else
        found = hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False))
    return f"{algorithm}:{found.hexdigest()}"


def download(
    urls: Sequence[str],
    target: Path,
    *,
    checksum: str,
    size: int,
    timeout: float = 30,
    retries: int = 4,
    pause: float = 1.0,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Download a file from the first URL that serves it. ``target`` exists afterwards only if its checksum is right.

    Unfinished data stay in ``target.part``, and the next call resumes from there. Temporary failures are retried after
    ``pause`` seconds, doubled each time. Raises ConnectionError if no URL could serve the file.
    """
    if _CHECKSUM.fullmatch(checksum) is None:
        raise ValueError(f"{checksum!r} is not a checksum: expected 'md5:' or 'sha256:' and its digits.")
    part = target.with_name(f"{target.name}.part")
    reasons = []
    for url in urls:
        for attempt in range(retries + 1):
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                _receive(url, part, checksum, size, timeout, on_progress)
                part.replace(target)
                return
            except urllib.error.HTTPError as error:
                error.close()
                reason, again = f"answered {error.code} {error.reason}", error.code in _TEMPORARY or error.code >= 500
            except urllib.error.URLError as error:
                reason, again = f"cannot be reached ({error.reason})", False
            except TimeoutError:
                reason, again = f"sent nothing for {timeout:g} seconds", True
            except (EOFError, ValueError) as error:  # it broke off, or this is another file
                reason, again = str(error), isinstance(error, EOFError)
            except (http.client.HTTPException, ConnectionError) as error:
                reason, again = f"broke off ({str(error) or type(error).__name__})", True
            except OSError as error:
                raise OSError(
                    f"{part} cannot be completed: {error.strerror or error}. Fix that and try again: the part already "
                    "downloaded is kept."
                ) from error
            _LOGGER.info("%s %s (%d of %d attempts)", url, reason, attempt + 1, retries + 1)
            if not again or attempt == retries:
                break
            time.sleep(pause * 2**attempt)
        reasons.append(f"{url} {reason}")
    raise ConnectionError(f"{target.name} could not be downloaded: {'; '.join(reasons)}.")


def _receive(
    url: str, part: Path, checksum: str, size: int, timeout: float, on_progress: Callable[[int, int], None]
) -> None:
    """Append what is missing of a file, and verify the whole; a wrong file is deleted."""
    begin = part.stat().st_size if part.exists() else 0
    if begin < size:
        headers = {"User-Agent": f"cldnet/{__version__}", "Accept-Encoding": "identity"}
        if begin:
            headers["Range"] = f"bytes={begin}-"
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout) as response:
            done = begin if response.status == 206 else 0
            if response.length is not None and done + response.length != size:  # for example a page that asks to log in
                raise ValueError(f"offers a file of {done + response.length:,} bytes instead of {size:,}")
            with part.open("ab") as file:
                file.truncate(done)
                on_progress(done, size)
                while done < size and (chunk := response.read1(_CHUNK)):
                    done += file.write(chunk)
                    on_progress(done, size)
        if done < size:
            raise EOFError(f"ended after {done:,} of {size:,} bytes")
    found = file_checksum(part, checksum.partition(":")[0])
    if found != checksum:
        part.unlink()
        if begin:  # perhaps parts of two files were glued together
            raise EOFError("sent the rest of another file")
        raise ValueError(f"sent a file with checksum {found} instead of {checksum}")


def unpack(archive: Path, into: Path, *, max_bytes: int = MAX_BYTES, max_members: int = MAX_MEMBERS) -> None:
    """Unpack a ``.tar``, ``.tar.gz`` or ``.zip`` archive into a new folder, completely or not at all.

    Raises ValueError if the archive is damaged, too large, or holds anything but plain files and folders below ``into``.
    Verify its checksum first: a cut archive may look complete.
    """
    if not archive.is_file():
        raise FileNotFoundError(f"There is no archive {archive}. Check the path, or download it first.")
    if into.exists():
        raise FileExistsError(f"{into} exists already: move it away before unpacking {archive}.")
    temporary = into.with_name(f".{into.name}.{secrets.token_hex(8)}.tmp")
    kinds = (0, stat.S_IFREG, stat.S_IFDIR)
    try:
        temporary.mkdir(parents=True)
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as file:
                members = (
                    (m.filename, m.file_size, stat.S_IFMT(m.external_attr >> 16) in kinds) for m in file.infolist()
                )
                _check_members(members, max_bytes, max_members)
                file.extractall(temporary)
        else:
            with tarfile.open(archive) as tar:
                plain = ((m.name, m.size, (m.isreg() or m.isdir()) and not m.issparse()) for m in tar)
                _check_members(plain, max_bytes, max_members)
                tar.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4 and later
                tar.extractall(temporary)
        temporary.rename(into)
    except Exception as error:  # hostile archives make the libraries raise nearly anything
        if isinstance(error, OSError) and error.errno is not None:
            raise OSError(f"{archive} cannot be unpacked into {into}: {error.strerror}.") from error
        raise ValueError(f"{archive} was not unpacked: {error!s:.300}. Delete it and download it again.") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # gone already after a success


def _check_members(members: Iterable[tuple[str, int, bool]], max_bytes: int, max_members: int) -> None:
    """Raise for the first member that is too much, leaves the folder, or is a link or a device."""
    total = 0
    for number, (name, size, plain) in enumerate(members, 1):
        total += size
        if number > max_members or size < 0 or total > max_bytes:
            raise ValueError(f"it has more than {max_members:,} members, or would take more than {max_bytes:,} bytes")
        path = PurePosixPath(name)
        leaves = path.is_absolute() or ".." in path.parts or bool(PureWindowsPath(name).drive)
        if leaves or "\\" in name or "\0" in name:
            raise ValueError(f"its member {name!r} would lie outside the folder")
        if not plain:
            raise ValueError(f"its member {name!r} is neither a plain file nor a folder")


def get_set(name: str, dest: Path, **options: Any) -> Path:
    """Download a known data set into a folder in ``dest``, unpack it, check it by reading it, and return that folder.

    Files that are already in ``dest``, such as an archive copied there by hand, are not downloaded again. The set appears
    in its place only when it is complete. ``options`` go to `download`.
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
    working.mkdir(parents=True, exist_ok=True)
    lock = FileLock(working / "lock")
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise OSError(f"Another process is downloading {name} into {dest}: wait for it, or stop it.") from None
    except NotImplementedError:  # a file system without locks
        pass
    try:
        home = _fetch(known, working, [dest, found or dest], options)
        if place.exists():
            aside = place.rename(place.with_name(f"{place.name}.damaged-{secrets.token_hex(4)}"))
            _LOGGER.warning("%s was damaged; it is now %s and can be deleted.", place, aside)
        home.rename(place)
        shutil.rmtree(working)
    finally:
        lock.release()
    return place


def _fetch(known: KnownSet, working: Path, local: Sequence[Path], options: Mapping[str, Any]) -> Path:
    """Download and unpack a set in a working folder, using files of local folders, and check it by reading it."""
    unpacked = working / "unpacked"
    home = unpacked / known.folders[0]
    for file in known.downloads:
        path = _local_copy(file, [*local, working])
        if path is None:
            path = working / file.filename
            try:
                download((file.url, *file.mirrors), path, checksum=file.checksum, size=file.size, **options)
            except ConnectionError as error:
                raise ConnectionError(f"{error}\n{known.by_hand(local[0])}") from error
        if file.filename.endswith((".tar", ".tgz", ".tar.gz", ".zip")):
            shutil.rmtree(unpacked, ignore_errors=True)  # of a call that was killed
            unpack(path, unpacked)
        else:
            home.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, home / file.filename)
    result = examine(known, home)
    if result.state != "whole":
        shutil.rmtree(unpacked)
        raise ValueError(f"What was downloaded for {known.name} is {result.state}")
    return home


def _local_copy(file: Download, folders: Sequence[Path]) -> Path | None:
    """A file with the right checksum in one of the folders."""
    paths = [folder / file.filename for folder in folders]
    algorithm = file.checksum.partition(":")[0]
    return next((path for path in paths if path.is_file() and file_checksum(path, algorithm) == file.checksum), None)
