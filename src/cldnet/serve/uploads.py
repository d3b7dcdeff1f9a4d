"""Read the samples of a request: JSON, files of a form, or a zip archive of folders."""

from __future__ import annotations

import base64
import binascii
import json
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, TypeVar

import numpy as np
from anyio import to_thread
from pydantic import ValidationError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from cldnet.data.images.decode import Limits, cut_from, read_photos
from cldnet.estimator.classifier import CLDNetClassifier
from cldnet.estimator.teaching import label_of
from cldnet.serve.guard import Refused
from cldnet.serve.schemas import MOST_LETTERS, MOST_SAMPLES, Labelled, Samples, Skipped
from cldnet.text import shown

#: Bytes of a JSON body, and of what a zip archive unpacks to.
MOST_JSON, MOST_UNPACKED = 16 << 20, 256 << 20
#: How its files may be compressed: of other methods, Python unpacks all that is there, whatever size is stated.
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
#: Entries of an archive that are read at all; besides its files, it may have folders and hidden files.
_MOST_ENTRIES = 4 * MOST_SAMPLES
#: Bytes of a form's files, all of which are held in memory, and of JSON without samples.
MOST_FORM, _MOST_FIELDS = 64 << 20, 1 << 16
#: Characters within emoji and words of some scripts, which are not printable alone.
_JOINERS = dict.fromkeys(map(ord, "\u200c\u200d"))
#: Bytes of a text file in an archive: more than any encoder reads.
_MOST_TEXT = 1 << 16
#: Photos in a request must not keep the service busy: each has about a second, or it is refused.
_PHOTO_LIMITS = Limits(quick=64_000_000, small=1 << 12, seconds=1, wait=1.25)
_Schema = TypeVar("_Schema", bound=Samples)


@dataclass(frozen=True)
class Upload:
    """Samples as they came: sentences, rows of numbers or contents of photos, each with its file's name, if there are files."""

    inputs: Sequence[Any]
    noun: str
    names: Sequence[str] = ()
    labels: Sequence[str] | None = None  # those of an archive's folders


@dataclass(frozen=True)
class Read:
    """Samples as a classifier takes them, the place of each in the request, and those that cannot be read."""

    inputs: Sequence[Any]
    places: Sequence[int]
    skipped: dict[int, Skipped] = field(default_factory=dict)


async def read_request(request: Request, schema: type[_Schema], noun: str | None) -> tuple[_Schema, Upload]:
    """Read a body of JSON or of a form; ``noun`` is what the model takes, if that is known."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        if kind == "multipart/form-data":
            return await _read_form(request, schema, noun)
        if kind in ("application/json", ""):
            return await _read_json(request, schema, noun)
    except ClientDisconnect:
        raise Refused(400, "The request ended before it was complete.") from None
    raise Refused(415, f"The service takes application/json or multipart/form-data, not {kind!r:.80}.")


async def validated(request: Request, schema: type[Any]) -> Any:
    """Read a body of JSON that has no samples; an empty one has the defaults."""
    try:
        body = await request.body()
    except ClientDisconnect:
        raise Refused(400, "The request ended before it was complete.") from None
    if len(body) > _MOST_FIELDS:
        raise Refused(413, f"This request may have {_MOST_FIELDS >> 10} kB at most.")
    return _validate(schema, body or b"{}")


async def _read_json(request: Request, schema: type[_Schema], noun: str | None) -> tuple[_Schema, Upload]:
    known = int(request.headers.get("content-length", "0"))
    body = b"" if known > MOST_JSON else await request.body()
    if max(known, len(body)) > MOST_JSON:
        raise Refused(413, f"JSON may have {MOST_JSON >> 20} MB at most: send files in a form (multipart/form-data).")
    asked: _Schema = await to_thread.run_sync(_validate, schema, body)
    rows = bool(asked.inputs) and not isinstance(asked.inputs[0], str)
    given = asked.kind or noun or ("row" if rows else "text")
    _check_kind(given, noun)
    if asked.inputs and rows != (given == "row"):
        raise Refused(
            422, f"The inputs are {'rows of numbers' if rows else 'strings'}, and the model takes {_said(given)}."
        )
    if given != "photo":
        return asked, Upload(asked.inputs, given)
    return asked, Upload(await to_thread.run_sync(_from_base64, asked.inputs), given)


def _validate(schema: type[_Schema], body: bytes | dict[str, Any]) -> _Schema:
    try:
        if isinstance(body, bytes):
            return schema.model_validate_json(body)
        return schema.model_validate(body)
    except ValidationError as error:
        raise Refused(422, _sentence(error)) from None


def _sentence(error: ValidationError) -> str:
    """The first thing that is wrong, in words."""
    errors = error.errors(include_url=False, include_input=False, include_context=False)
    where = shown(errors[0]["loc"][0])[:80] if errors[0]["loc"] else ""
    # An alternative of the right type comes first: of a long label, that it is long, not that it is no number.
    same = [each for each in errors if each["loc"][:1] == errors[0]["loc"][:1]]
    first = next((each for each in same if not each["type"].endswith("_type")), errors[0])
    return f"{where or 'The body'} is not valid: {shown(first['msg'])[:200]}."


def _from_base64(inputs: Sequence[Any]) -> list[bytes]:
    contents = []
    for place, text in enumerate(inputs):
        try:
            contents.append(base64.b64decode(text, validate=True))
        except (binascii.Error, ValueError):
            raise Refused(422, f"Photo {place + 1} is not base64: encode the bytes of its file.") from None
    return contents


async def _read_form(request: Request, schema: type[_Schema], noun: str | None) -> tuple[_Schema, Upload]:
    async with aclosing(request.stream()) as stream:
        parser = MultiPartParser(request.headers, stream, max_files=MOST_SAMPLES, max_fields=32, max_part_size=1 << 19)
        parser.spool_max_size = MOST_FORM  # in memory: no photo is written to disk
        try:
            form = await parser.parse()
        except MultiPartException as error:
            raise Refused(400, f"The form cannot be read: {shown(error.message)[:200].rstrip('.')}.") from None
    try:
        files = [each for each in form.getlist("files") if isinstance(each, UploadFile)]
        fields: dict[str, Any] = {name: value for name, value in form.items() if isinstance(value, str)}
        contents = [await each.read() for each in files]
        names = [each.filename or "" for each in files]
    finally:
        await form.close()
    if "labels" in fields:
        fields["labels"] = _list(fields["labels"])
    asked = _validate(schema, {**fields, "inputs": [""] * len(files)})
    if not files:
        raise Refused(422, "There are no files: put the samples into fields named files.")
    if len(files) == 1 and contents[0].startswith(b"PK"):
        return asked, await to_thread.run_sync(_read_archive, contents[0], noun)
    given = noun or "photo"
    if given == "photo":
        return asked, Upload(contents, given, names)
    if given == "text":
        return asked, Upload(
            [_text(name, content) for name, content in zip(names, contents, strict=True)], given, names
        )
    raise Refused(422, "The model takes rows of numbers, which are sent as JSON, not as files.")


def _list(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise Refused(422, 'labels is not valid: in a form it is a list in JSON, such as ["cat", "dog"].') from None


def _read_archive(content: bytes, noun: str | None) -> Upload:
    """Read the files of an archive, with the folder of each as its label. Nothing is written to disk."""
    if content.count(b"PK\1\2") > _MOST_ENTRIES:
        raise Refused(413, f"An archive may have {MOST_SAMPLES:,} files at most: send several.")
    try:
        with zipfile.ZipFile(BytesIO(content)) as archive:
            members = [*_members(archive)]
            if not members:
                raise Refused(
                    422, "The archive has no folders with files: put the samples of each class into a folder."
                )
            given = noun or ("text" if all(member.name.lower().endswith(".txt") for member in members) else "photo")
            if given == "row":
                raise Refused(422, "The model takes rows of numbers, which are sent as JSON, not as files.")
            contents = [_unpacked(archive, member.info) for member in members]
    except (
        zipfile.BadZipFile,
        zipfile.LargeZipFile,
        zlib.error,
        NotImplementedError,
        RuntimeError,
        EOFError,
        OSError,
        ValueError,
    ) as error:
        raise Refused(422, f"The archive cannot be read: {shown(str(error))[:200]}.") from None
    names = [member.name for member in members]
    labels = [member.label for member in members]
    if given == "text":
        return Upload([_text(*pair) for pair in zip(names, contents, strict=True)], given, names, labels)
    return Upload(contents, given, names, labels)


def _unpacked(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """Unpack a file up to the size that the archive states for it, which is not all if that is wrong."""
    with archive.open(info) as file:
        return file.read(info.file_size)


@dataclass(frozen=True)
class _Member:
    info: zipfile.ZipInfo
    name: str
    label: str


def _members(archive: zipfile.ZipFile) -> Iterator[_Member]:
    """The files in folders, without hidden ones; refuse names that lead elsewhere, and archives that unpack to too much."""
    total = count = 0
    for info in archive.infolist():
        parts = info.filename.split("/")
        unsafe = (
            info.filename.startswith("/") or "\\" in info.filename or ".." in parts or not info.filename.isprintable()
        )
        if unsafe:
            raise Refused(422, f"The archive has an unsafe file name, {shown(info.filename)[:80]!r}. Make it again.")
        if info.is_dir() or len(parts) < 2 or any(part.startswith((".", "__MACOSX")) for part in parts):
            continue
        total, count = total + info.file_size, count + 1
        if count > MOST_SAMPLES:
            raise Refused(413, f"An archive may have {MOST_SAMPLES:,} files at most: send several.")
        if total > MOST_UNPACKED:
            raise Refused(413, f"An archive may unpack to {MOST_UNPACKED >> 20} MB at most: send several.")
        if info.compress_type not in _METHODS:
            raise Refused(422, "The archive is compressed with an unusual method. Make it again, with deflate.")
        if len(parts[-2]) > MOST_LETTERS:
            raise Refused(422, f"A folder's name, which is the label, may have {MOST_LETTERS} characters at most.")
        yield _Member(info, info.filename, parts[-2])


def _text(name: str, content: bytes) -> str:
    try:
        text = content[:_MOST_TEXT].decode("utf-8-sig", errors="strict" if len(content) <= _MOST_TEXT else "ignore")
    except UnicodeDecodeError:
        text = ""
    if not text.strip():
        raise Refused(422, f"{shown(name)[:80]!r} is not a text in UTF-8, or empty.")
    return text


def check_labels(labels: Sequence[Any], what: str = "label") -> None:
    """Refuse labels, or names, that no page and no terminal could show."""
    for label in dict.fromkeys(labels):
        if isinstance(label, str) and not (label.translate(_JOINERS).isprintable() and label.strip()):
            raise Refused(
                422, f"The {what} {shown(label)[:80]!r} has control characters, or is empty. Choose a plain text."
            )


def labels_of(asked: Labelled, upload: Upload, clf: CLDNetClassifier | None) -> list[Any]:
    """The label of every sample, in the type of the model's labels where it came as text."""
    if upload.labels is not None and (asked.label is not None or asked.labels is not None):
        raise Refused(422, "An archive has its labels in the names of its folders: leave label out.")
    labels = upload.labels if upload.labels is not None else asked.every_label(len(upload.inputs))
    if labels is None:
        raise Refused(422, "There is no label: send label, or labels with one for each of the inputs.")
    check_labels(labels)
    as_text = upload.labels is not None or bool(upload.names)
    return [label_of(clf, label) if as_text and clf is not None else label for label in labels]


def _check_kind(given: str, noun: str | None) -> None:
    if noun is not None and given != noun:
        raise Refused(422, f"The model takes {_said(noun)}, not {_said(given)}.")


def _said(noun: str) -> str:
    return {"photo": "photos", "text": "sentences", "row": "rows of numbers"}[noun]


def decoded(upload: Upload, side: int) -> Read:
    """Turn the contents of photos into pixels, and check rows; sentences stay as they are."""
    if upload.noun == "row":
        return _rows(upload)
    if upload.noun == "text":
        for place, sentence in enumerate(upload.inputs):
            if not sentence.strip():
                raise Refused(422, f"Sentence {place + 1} is empty: leave it out, or give its text.")
        return Read(upload.inputs, range(len(upload.inputs)))
    photos = read_photos(upload.inputs, side, cut_from(side), _PHOTO_LIMITS)
    missing = sorted({*range(len(upload.inputs))} - {*photos.places.tolist()})
    names = upload.names or [f"photo {place + 1}" for place in range(len(upload.inputs))]
    skipped = {
        place: Skipped(name=shown(names[place])[:MOST_LETTERS], reason=bad.reason)
        for place, bad in zip(missing, photos.bad, strict=True)
    }
    return Read([*photos.x], photos.places.tolist(), skipped)


def _rows(upload: Upload) -> Read:
    widths = {len(row) for row in upload.inputs}
    if len(widths) > 1:
        raise Refused(422, f"Rows have {min(widths)} and {max(widths)} numbers: give all of them the same columns.")
    try:
        rows = np.array(upload.inputs, dtype=np.float64)
    except (OverflowError, ValueError):
        raise Refused(422, "A row has a number that is too large.") from None
    if not (np.abs(rows) <= np.finfo(np.float32).max).all():  # models compute with these
        raise Refused(422, "A row has a number that is not finite, or too large.")
    return Read([*rows], range(len(rows)))
