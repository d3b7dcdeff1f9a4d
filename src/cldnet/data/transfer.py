"""What one address gives, asked for as often as there is hope, goes into a file that grows."""

from __future__ import annotations

import http.client
import logging
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, cast
from urllib.parse import urlsplit

from cldnet.data.partfile import PartFile
from cldnet.version import __version__

__all__ = ["Elsewhere", "WrongFile", "check_address", "insist"]

_LOGGER = logging.getLogger("cldnet")

#: Where neither the caller nor the server says how large a file is, it is cut off here.
_MOST = 1 << 36
_CHUNK = 1 << 16
#: A failed attempt that brought at least this much more than any before it does not count as one.
_PROGRESS = 1 << 20
#: Whole files with a wrong checksum that are taken from one address before it is given up.
_WRONG_FILES = 2
_LONGEST_PAUSE = 30.0
_TEMPORARY = (408, 425, 429)


class _Again(Exception):
    """The server may do better next time, perhaps after some seconds."""

    def __init__(self, reason: str, seconds: float = 0.0) -> None:
        super().__init__(reason)
        self.seconds = seconds


class _Unreachable(_Again):
    """No connection came about: if none has before, another attempt is a waste of the user's time."""


class Elsewhere(Exception):
    """The server has nothing for us: ask another one."""


class WrongFile(Exception):
    """All came, and it is not the file that was wanted; its checksum."""


def check_address(address: str) -> None:
    """Refuse what is not an address of the web.

    Examples
    --------
    >>> check_address("file:///etc/passwd")
    Traceback (most recent call last):
    ...
    ValueError: 'file:///etc/passwd' is not an address that begins with http:// or https://.
    """
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{address!r} is not an address that begins with http:// or https://.")


def insist(
    part: PartFile,
    address: str,
    size: int | None,
    timeout: float,
    retries: int,
    pause: float,
    on_progress: Callable[[int, int | None], None],
) -> None:
    """Ask one address until the file is whole, or until there is no hope for it."""
    failures = wrong_files = 0
    longest = begun = part.length
    while not part.whole:
        if size is not None and part.length >= size:
            part.restart()  # what an earlier call left there is of another file
        try:
            _receive(part, address, size, timeout, on_progress)
        except _Again as reason:
            failures = 1 if part.length >= longest + _PROGRESS else failures + 1
            longest = max(longest, part.length)
            _LOGGER.info("%s %s (%d of %d attempts)", address, reason, failures, retries + 1)
            if failures > retries or (isinstance(reason, _Unreachable) and longest == begun):
                raise Elsewhere(str(reason)) from reason
            time.sleep(max(reason.seconds, min(pause * 2 ** (failures - 1), _LONGEST_PAUSE)))
            continue
        if not part.whole:
            found, wrong_files = part.found, wrong_files + 1
            part.restart()
            if wrong_files == _WRONG_FILES:
                raise WrongFile(found)


def _receive(
    part: PartFile, address: str, size: int | None, timeout: float, on_progress: Callable[[int, int | None], None]
) -> None:
    """Ask a server for what is missing of a file, and append it.

    Raises
    ------
    _Again, Elsewhere
        If not all has come; what has come is kept where it can be of use.
    """
    headers = {"User-Agent": f"cldnet/{__version__}", "Accept-Encoding": "identity"}
    if part.length:
        headers["Range"] = f"bytes={part.length}-"
        validator = part.validator(address)
        if validator is not None:
            headers["If-Range"] = validator
    with _open(urllib.request.Request(address, headers=headers), timeout, part) as response:
        rest = cast("int | None", response.length)
        total = None if rest is None else rest + (part.length if response.status == 206 else 0)
        if None not in (total, size) and total != size:  # a page that asks to log in, for example: keep what has come
            raise Elsewhere(f"offers a file of {total:,} bytes instead of {size:,}")
        _check_start(part, address, response)
        _copy(part, response, total or size, timeout, on_progress)


def _check_start(part: PartFile, address: str, response: Any) -> None:
    """Start over unless the answer goes on where the file ends."""
    if response.status == 206:
        begins = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
        if begins is None or int(begins[1]) != part.length:
            part.restart()
            raise _Again("answered with another range than was asked for")
    else:
        part.restart()
        etag = response.headers.get("ETag")
        strong = None if etag is None or etag.startswith("W/") else etag  # only these promise equal bytes
        part.remember(address, strong or response.headers.get("Last-Modified"))


def _copy(
    part: PartFile, response: Any, total: int | None, timeout: float, on_progress: Callable[[int, int | None], None]
) -> None:
    on_progress(part.length, total)
    while chunk := _read(response, timeout):
        if part.length + len(chunk) > (total or _MOST):
            part.restart()
            raise Elsewhere(f"sent more than the {total or _MOST:,} bytes that the file has")
        part.append(chunk)
        on_progress(part.length, total)
    if total is not None and part.length < total:
        raise _Again(f"ended after {part.length:,} of {total:,} bytes")


class _WebOnly(urllib.request.HTTPRedirectHandler):
    """Follows redirections to addresses of the web and to nothing else."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        try:
            check_address(newurl)
        except ValueError:
            fp.close()
            raise
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _open(request: urllib.request.Request, timeout: float, part: PartFile) -> Any:
    opener = urllib.request.OpenerDirector()  # by hand, because the usual one also opens files
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.UnknownHandler,
        _WebOnly,
    ):
        opener.add_handler(handler())
    try:
        return opener.open(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # the file there is shorter than what we have
            part.restart()
            raise _Again("has a shorter file than the part that came before") from error
        if error.code in _TEMPORARY or error.code >= 500:
            raise _Again(f"answered {error.code} {error.reason}", _seconds(error.headers)) from error
        raise Elsewhere(f"answered {error.code} {error.reason}") from error
    except urllib.error.URLError as error:  # before there was a connection
        raise _Unreachable(f"cannot be reached ({error.reason})") from error
    except (OSError, http.client.HTTPException) as error:
        raise _network_trouble(error, timeout) from error
    except ValueError as error:  # redirected to what is no address of the web
        raise Elsewhere(f"redirected: {error}") from error


def _read(response: Any, timeout: float) -> bytes:
    try:
        return cast(bytes, response.read1(_CHUNK))
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _network_trouble(error, timeout) from error


def _network_trouble(error: Exception, timeout: float) -> _Again:
    if isinstance(error, TimeoutError):
        return _Again(f"sent nothing for {timeout:g} seconds")
    return _Again(f"broke off ({str(error) or type(error).__name__})")


def _seconds(headers: Any) -> float:
    """How long a server wants to be left alone, up to a minute."""
    text = headers.get("Retry-After", "") if headers is not None else ""
    return min(60.0, float(text)) if text.isdecimal() else 0.0
