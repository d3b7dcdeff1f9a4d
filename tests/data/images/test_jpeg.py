"""The markers of a JPEG: scans are counted as a decoder meets them, wherever the same bytes stand elsewhere."""

from __future__ import annotations

import io
from typing import Any

import pytest
from PIL import Image
from tests.data.images.hostile import many_scans

from cldnet.data.images import decode
from cldnet.data.images.decode import MAX_SCANS, Frame, count_scans, read_frame

COMMENT_OF_SCANS = b"\xff\xfe\0\x0a" + 4 * b"\xff\xda"
COMMENT_OF_AN_END = b"\xff\xfe\0\x04\xff\xd9"


def encoded(**options: Any) -> bytes:
    file = io.BytesIO()
    image = Image.linear_gradient("L").resize((400, 300))
    Image.merge("RGB", [image, image.rotate(90), image]).save(file, format="JPEG", **options)
    return file.getvalue()


def scans(content: bytes) -> int:
    return count_scans(io.BytesIO(content))


def before_first(content: bytes, marker: bytes, inserted: bytes) -> bytes:
    place = content.index(marker)
    return content[:place] + inserted + content[place:]


@pytest.mark.parametrize("block", [1 << 16, 2])  # with the latter, markers lie across two blocks
def test_scans_are_counted(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(decode, "_BLOCK", block)
    assert scans(encoded()) == 1
    assert scans(encoded(restart_marker_blocks=1)) == 1
    assert scans(encoded(progressive=True)) == 10
    assert scans(many_scans(20)) == 6 + 20


def test_counting_ends_beyond_the_limit() -> None:
    assert scans(many_scans(MAX_SCANS - 6)) == MAX_SCANS
    assert scans(many_scans(3_000)) == MAX_SCANS + 1
    assert scans(before_first(encoded(progressive=True), b"\xff\xda", 1_000 * b"\xff\xfe\0\x02")) == MAX_SCANS + 1


def test_what_looks_like_a_marker_within_a_segment_does_not_count() -> None:
    progressive = encoded(progressive=True)
    assert scans(before_first(progressive, b"\xff\xda", COMMENT_OF_SCANS)) == 10
    assert scans(before_first(progressive, b"\xff\xda", COMMENT_OF_AN_END)) == 10
    last = progressive.rindex(b"\xff\xda")
    assert scans(progressive[:last] + COMMENT_OF_AN_END + b"\xff\xff" + progressive[last:]) == 10


def test_what_follows_the_end_of_the_picture_does_not_count() -> None:
    assert scans(encoded() + encoded(progressive=True)) == 1


def test_the_frame_tells_size_and_whether_one_scan_holds_all() -> None:
    assert read_frame(io.BytesIO(encoded())) == Frame(400, 300, one_scan=True)
    assert read_frame(io.BytesIO(encoded(progressive=True))) == Frame(400, 300, one_scan=False)
    one_colour = encoded().replace(b"\xff\xda\0\x0c\x03", b"\xff\xda\0\x0c\x01")
    assert read_frame(io.BytesIO(one_colour)) == Frame(400, 300, one_scan=False)


@pytest.mark.parametrize(
    "inserted",
    [
        b"\xff",  # a fill byte
        b"junk",
        b"\xff\xc0\0\x0b\x08\0\x10\0\x10\x01\x01\x11\0",  # a second frame
        2 * b"\xff\xe1\0\x08Exif\0\0",
        1_000 * b"\xff\xfe\0\x02",
        b"\xff\xfe\0\x01",  # a length that leaves itself out
    ],
)
def test_an_odd_header_is_not_vouched_for(inserted: bytes) -> None:
    assert read_frame(io.BytesIO(before_first(encoded(), b"\xff\xda", inserted))) is None


@pytest.mark.parametrize("content", [b"", b"\xff\xd8", b"\xff\xd8\xff\xda\0\x02", encoded()[:300], b"GIF89a"])
def test_what_has_no_scan_has_no_frame(content: bytes) -> None:
    assert read_frame(io.BytesIO(content)) is None
