"""Requests that no client should send: each kind draws one from a seeded generator. See `benchmarks.serve`."""

from __future__ import annotations

import base64
import io
import json
import random
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from benchmarks.service.clients import FORM, TOKEN, form, request

_CONTROL = ("\x00", "\x07", "\x1b[31m", "\r\n", "\x7f", "\u202e", "\u2028", "\x85")
_MARKUP = ("<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "'\"><svg onload=alert(1)>", "${7*7}{{7*7}}")


@dataclass(frozen=True)
class Sent:
    """A request: what is sent at once, then the rest in pieces with a pause before each; and to which model."""

    raw: bytes
    rest: Sequence[bytes] = ()
    pause: float = 0.0
    model: str = "photo"


@cache
def _picture(kind: str, side: int = 64, **options: Any) -> bytes:
    """A sound picture."""
    from PIL import Image

    file = io.BytesIO()
    Image.effect_noise((side, side), 40).convert("RGB").save(file, kind, **options)
    return file.getvalue()


@cache
def _png(side: int, bits: int, share: float = 1.0) -> bytes:
    """A black PNG that is small as a file; of a share under 1 the end is missing."""
    packer, line = zlib.compressobj(9), bytes(1 + side * bits // 8)
    data = b"".join(packer.compress(line) for _ in range(side)) + packer.flush()

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    head = struct.pack(">IIBBBBB", side, side, min(bits, 8), 2 if bits == 24 else 0, 0, 0, 0)
    whole = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    return whole[: int(share * len(whole))]


def _claiming(content: bytes, side: int) -> bytes:
    """A JPEG whose header claims another size than it has."""
    place = next(content.index(mark) for mark in (b"\xff\xc0", b"\xff\xc2") if mark in content)
    return content[: place + 5] + struct.pack(">HH", side, side) + content[place + 9 :]


def _zip(members: Sequence[tuple[str, bytes]], password: bool = False) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    changed = bytearray(file.getvalue())
    if password:
        changed[changed.index(b"PK\x01\x02") + 8] |= 1
    return bytes(changed)


@cache
def _bomb(lies: bool) -> bytes:
    """An archive that unpacks to 300 MB, and says so, or says that it is small."""
    content = _zip([(f"cat/{number}.jpg", bytes(30 << 20)) for number in range(1 if lies else 10)])
    return content.replace(struct.pack("<I", 30 << 20), struct.pack("<I", 100)) if lies else content


def _asked(draw: random.Random, files: Sequence[tuple[str, bytes]], **headers: Any) -> Sent:
    """Files to predict or to learn."""
    if draw.random() < 0.5:
        return Sent(request("POST", "/predict", *form(files), **headers))
    return Sent(request("POST", "/learn", *form(files, label="cat"), **headers))


def _archive(content: bytes) -> Sent:
    return Sent(request("POST", "/learn", *form([("photos.zip", content)])))


def _json(path: str, value: Any, model: str = "photo") -> Sent:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return Sent(request("POST", path, body), model=model)


def _lesson(label: Any, **more: Any) -> Sent:
    photo = base64.b64encode(_picture("JPEG")).decode()
    return _json("/learn", {"label": label, "inputs": [photo], **more})


def _letters(draw: random.Random, count: int) -> str:
    return "".join(draw.choices("abcdefghij ÄЖ中🙂", k=count))


def _half(content: bytes, draw: random.Random) -> bytes:
    return content[: draw.randrange(20, len(content) // 2)]


def _broken_form(draw: random.Random) -> Sent:
    body, kind = form([("a.jpg", _picture("JPEG"))])
    other = draw.choice(
        ["multipart/form-data", "multipart/form-data; boundary=", "multipart/form-data; boundary=other"]
    )
    forms = [
        (body, other),
        (body[: len(body) // 2], kind),
        (draw.randbytes(2000), kind),
        (b"", kind),
        (body.replace(b'name="files"', b'name="fotos"'), kind),
        (form([], **{f"field{number}": "x" for number in range(100)})[0], kind),
        (form([], label="x" * (1 << 17))[0], kind),
        (form([("a", b"")] * 1100)[0], kind),
        (body.replace(b"Content-Disposition", b"Content-Disposition" * 500), kind),
    ]
    return Sent(request("POST", "/predict", *draw.choice(forms)))


def _slow(draw: random.Random) -> Sent:
    """A body that stops, or drips."""
    length = draw.randrange(10_000, 1 << 20)
    head = request("POST", draw.choice(["/predict", "/learn", "/undo"]), b"", draw.choice(["application/json", FORM]))
    head = head.replace(b"Content-Length: 0", f"Content-Length: {length}".encode())
    drops = [b"x" * draw.randrange(1, 50) for _ in range(100)]
    return Sent(head, drops, draw.uniform(0.05, 1.0)) if draw.random() < 0.7 else Sent(head + b'{"inputs": ["')


def _slow_headers(draw: random.Random) -> Sent:
    """Headers that stop, or drip."""
    head = request("POST", "/predict")[: draw.randrange(5, 100)]
    return Sent(head, [b"x"] * 100, draw.uniform(0.05, 1.0)) if draw.random() < 0.7 else Sent(head)


def _large(draw: random.Random) -> Sent:
    """A body that is too large: by its length, in chunks, or as JSON."""
    choice, path = draw.randrange(8), draw.choice(["/predict", "/learn", "/undo"])
    if choice < 4:
        length = draw.choice([(64 << 20) + 1, 10**10, 10**14, 10**30])
        return Sent(request("POST", path, Content_Length=length), [b"x" * 65536] * 4, 0.01)
    if choice < 7:
        return Sent(request("POST", "/predict", b" " * (17 << 20)))
    head = request("POST", "/predict", kind=FORM, Content_Length=None, Transfer_Encoding="chunked")
    return Sent(head, [b"%x\r\n" % (1 << 20) + bytes(1 << 20) + b"\r\n"] * 70)


def _malformed(draw: random.Random) -> Sent:
    """What is no HTTP."""
    good = request("POST", "/predict", b"{}")
    bad = [
        draw.randbytes(100) + b"\r\n\r\n",
        b"GET /health\r\n\r\n",
        b"GET /health HTTP/9.9\r\n\r\n",
        good.replace(b"Host: 127.0.0.1\r\n", b""),
        good.replace(b"Content-Length: 2", f"Content-Length: {draw.choice(['-5', '2x', '', '1, 2', '+2'])}".encode()),
        good.replace(b"Content-Length: 2", b"Content-Length: 2\r\nContent-Length: 3"),
        good.replace(b"Content-Length: 2", b"Transfer-Encoding: chunked, gzip"),
        good.replace(b"\r\n\r\n", b"\r\nA header without a colon\r\n\r\n"),
        good.replace(b"\r\n\r\n", b"\r\nX-Control: a\x00b\r\n\r\n"),
        good.replace(b"\r\n\r\n", b"\r\nX-Long: " + b"x" * 200_000 + b"\r\n\r\n"),
        good.replace(b"Content-Length: 2", b"Transfer-Encoding: chunked").replace(b"{}", b"zz\r\n{}\r\n0\r\n\r\n"),
    ]
    return Sent(draw.choice(bad))


def _wrong_route(draw: random.Random) -> Sent:
    method = draw.choice(["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "get", "BREW"])
    paths = {
        "GET": [
            "/learn",
            "/predict",
            "/../../etc/passwd",
            "/%2e%2e/%2e%2e/etc/passwd",
            "/model/../../x",
            "/studio/compare",
        ],
        "POST": ["/classes", "/model", "/health", "/", "/predict/", "//predict", "/predict%00", "/openapi.json"],
    }
    other = ["/predict", "/model", "/" + _letters(draw, 20).replace(" ", "").encode().hex(), "/" + "x" * 5000]
    return Sent(request(method, draw.choice(paths.get(method, other))))


def _wrong_token(draw: random.Random) -> Sent:
    given = [
        "Bearer",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Basic {TOKEN}",
        TOKEN,
        "Bearer ü",
        "Bearer " + "x" * 9999,
        None,
    ]
    path, method = draw.choice(
        [("/predict", "POST"), ("/learn", "POST"), ("/model", "GET"), ("/metrics", "GET"), ("/x", "GET")]
    )
    body = form([("a.jpg", _picture("JPEG"))], label="cat") if method == "POST" else ()
    return Sent(request(method, path, *body, Authorization=draw.choice(given)))


def _bad_label(draw: random.Random) -> Sent:
    bad = [None, [], {}, {"a": 1}, [["cat"]], "", " ", "\ud800", 10**400, [True]]
    return _lesson(draw.choice(bad))


def _bad_rows(draw: random.Random) -> Sent:
    numbers = ["NaN", "Infinity", "-Infinity", "1e999", "null", '"1"', "true", "[1]", "1" * 5000, "1e308, 1e308"]
    row = [str(draw.random()) for _ in range(16)]
    row[draw.randrange(16)] = draw.choice(numbers)
    body = f'{{"inputs": [[{", ".join(row)}]]}}'.encode()
    return _json(draw.choice(["/predict", "/audit"]), body, "row")


def _bad_shape(draw: random.Random) -> Sent:
    shapes: list[Any] = [
        [[1.0]],
        [[1.0] * 17],
        [[]],
        [],
        [[1.0] * 16, [1.0]],
        [1.0] * 16,
        ["text"],
        [[1.0] * 16] * 1001,
        [[0.5] * 100_001],
    ]
    return _json(
        draw.choice(["/predict", "/audit"]),
        {"inputs": draw.choice(shapes[:-2] if draw.random() < 0.9 else shapes)} | {"x": 0},
        "row",
    )


def _wrong_types(draw: random.Random) -> Sent:
    values: list[Any] = [None, 1, "x", {}, [None], [{}], [True], [[["x"]]], [1, "x"], {"0": "x"}, [b"x".hex(), 1]]
    fields = (
        {"inputs": draw.choice(values)}
        if draw.random() < 0.5
        else {
            "inputs": ["AAAA"],
            draw.choice(["top", "reject", "kind"]): draw.choice([-1, "x", [], {}, 1e9, "../.."]),
        }
    )
    return _json("/predict", fields)


def _no_json(draw: random.Random) -> Sent:
    bodies = [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe{}",
        '{"inputs": ["a"]}'.encode("utf-16"),
        draw.randbytes(500),
        b'{"inputs": ["\xff"]}',
    ]
    return _json(draw.choice(["/predict", "/learn", "/audit", "/rename"]), draw.choice(bodies))


def _unknown(draw: random.Random) -> Sent:
    asked: list[tuple[str, Any]] = [
        ("/undo", {"lesson": draw.choice([0, -1, 10**30, "no such lesson", "\x00", True, 1.5])}),
        ("/rename", {"old": "nobody", "new": "cat"}),
        ("/rename", {"old": "dune", "new": draw.choice(["a\x1bb", "", "x" * 201, None, "forest\n"])}),
        ("/forget", {"class": draw.choice(["nobody", 7, "\x00", None])}),
        ("/forget", {}),
    ]
    return _json(*draw.choice(asked))


def _uneven(draw: random.Random) -> Sent:
    labels = ["cat"] * draw.choice([0, 2, 999, 1001])
    more = {"label": "dog"} if draw.random() < 0.3 else {}
    return _json("/learn", {"inputs": ["AAAA"], "labels": labels, **more})


def _bomb_picture(draw: random.Random) -> Sent:
    bombs = [
        _png(30_000, 1),
        _png(60_000, 1),
        _claiming(_picture("JPEG"), 65_500),
        _claiming(_picture("JPEG", progressive=True), 65_500),
        _picture("BMP").replace(struct.pack("<ii", 64, 64), struct.pack("<ii", 60_000, 60_000)),
        _picture("GIF").replace(struct.pack("<HH", 64, 64), struct.pack("<HH", 65_535, 65_535)),
    ]
    return _asked(draw, [("bomb", draw.choice(bombs))])


KINDS: dict[str, Callable[[random.Random], Sent]] = {
    "bytes that are no image": lambda draw: _asked(draw, [("a.jpg", draw.randbytes(draw.randrange(5000)))]),
    "image without its end": lambda draw: _asked(
        draw, [("a", _half(_picture(draw.choice(["JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF"])), draw))]
    ),
    "large image without its end": lambda draw: _asked(
        draw, [("a.png", _png(draw.choice([3000, 6000, 9000]), 24, 0.95))]
    ),
    "decompression bomb": _bomb_picture,
    "image in JSON that is none": lambda draw: _json(
        "/predict",
        {"inputs": [draw.choice(["%%%", "<svg/>", "a b", "ÄÖ", base64.b64encode(draw.randbytes(99)).decode()])]},
    ),
    "wrong types": _wrong_types,
    "label that is none": _bad_label,
    "huge label": lambda draw: _lesson(_letters(draw, draw.choice([201, 1000, 100_000, 3_000_000]))),
    "control characters in a label": lambda draw: _lesson(f"cat{draw.choice(_CONTROL)}{draw.choice(_MARKUP)}"),
    "control characters in a lesson's name": lambda draw: _lesson("cat", name=f"x{draw.choice(_CONTROL)}y"),
    "file name with markup or control characters": lambda draw: _asked(
        draw, [(draw.choice(_MARKUP).replace('"', "%22") + draw.choice(["\x1b", "\x07", "\x7f", "../"]), b"no image")]
    ),
    "labels and samples of different number": _uneven,
    "path traversal in an archive": lambda draw: _archive(
        _zip(
            [
                (
                    draw.choice(
                        ["../cat/a.jpg", "/etc/cat/a.jpg", "cat/../../a.jpg", "cat\\..\\a.jpg", "cat/a\x07.jpg"]
                    ),
                    _picture("JPEG"),
                )
            ]
        )
    ),
    "archive that unpacks to too much": lambda draw: _archive(_bomb(draw.random() < 0.5)),
    "broken archive": lambda draw: _archive(
        draw.choice(
            [
                b"PK\x03\x04" + draw.randbytes(500),
                _half(_zip([("cat/a.jpg", _picture("JPEG"))]), draw),
                _zip([("cat/a.jpg", _picture("JPEG"))], password=True),
                _zip([("a.jpg", _picture("JPEG"))]),
                _zip([(f"cat/{number}.jpg", b"x") for number in range(1001)]),
                _zip([(f"{'c' * 201}/a.jpg", _picture("JPEG"))]),
            ]
        )
    ),
    "missing or wrong token": _wrong_token,
    "wrong Host": lambda draw: Sent(
        request(
            "POST",
            "/predict",
            b"{}",
            Host=draw.choice(["evil.example", "127.0.0.1.evil.example", "10.0.0.1", "x" * 9000]),
        )
    ),
    "wrong Origin": lambda draw: Sent(
        request("POST", "/learn", b"{}", Origin=draw.choice(["http://evil.example", "null", "http://127.0.0.1:1"]))
    ),
    "slow body": _slow,
    "headers without an end": _slow_headers,
    "too large body": _large,
    "wrong content type": lambda draw: Sent(
        request(
            "POST",
            draw.choice(["/predict", "/learn"]),
            b"x=1",
            draw.choice(["text/plain", "image/jpeg", "x", "application/xml", "a" * 5000]),
        )
    ),
    "deep JSON": lambda draw: _json(
        draw.choice(["/predict", "/undo", "/learn"]),
        b'{"inputs": ' + draw.choice([b"[", b'{"a":']) * draw.choice([500, 50_000, 1_000_000]),
    ),
    "no JSON": _no_json,
    "values that are not numbers": _bad_rows,
    "rows of a wrong shape": _bad_shape,
    "broken form": _broken_form,
    "wrong method or path": _wrong_route,
    "no HTTP": _malformed,
    "unknown lesson or class": _unknown,
    "unknown fields": lambda draw: _json("/predict", {"inputs": ["AAAA"], _letters(draw, 10): draw.random()}),
}
