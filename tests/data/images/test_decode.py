"""One image: the same pixels as a plain reading gives, and no file that does harm."""

from __future__ import annotations

import io
import os
import resource
import struct
import subprocess
import sys
import tracemalloc
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from tests.data.images.hostile import long_comment, many_scans, png

from cldnet.data.images import decode as module
from cldnet.data.images.decode import BadImage, Limits, decode, is_quick

SIZE, RESIZE = 16, 18


def picture(width: int, height: int, mode: str = "RGB") -> Image.Image:
    """Smooth colours and some noise, different in every corner."""
    across, down = np.linspace(0, 1, width), np.linspace(0, 1, height)[:, None]
    planes = [across + 0 * down, down + 0 * across, (1 - across) * down]
    noise = np.random.default_rng(0).uniform(0, 40, (height, width, 3))
    return Image.fromarray((np.stack(planes, -1) * 215 + noise).astype(np.uint8)).convert(mode)


def saved(image: Image.Image, path: Path, **options: Any) -> str:
    image.save(path, **options)
    return str(path)


def pixels(path: str, size: int = SIZE, resize: int = RESIZE) -> np.ndarray[Any, np.dtype[np.uint8]]:
    found = decode(path, size, resize)
    assert not isinstance(found, BadImage), found
    assert found.shape == (3, size, size)
    assert found.flags["C_CONTIGUOUS"]
    return found


def reason(path: str | Path) -> str:
    found = decode(str(path), SIZE, RESIZE)
    assert isinstance(found, BadImage)
    assert found.path == str(path)
    return found.reason


def plain(image: Image.Image, size: int = SIZE, resize: int = RESIZE) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The plain way: convert, resize the whole image, cut the centre out."""
    image = image.convert("RGB")
    short = min(image.size)
    image = image.resize((resize * image.width // short, resize * image.height // short), Image.Resampling.BICUBIC)
    left, top = round((image.width - size) / 2), round((image.height - size) / 2)
    return np.asarray(image.crop((left, top, left + size, top + size))).transpose(2, 0, 1).astype(np.int64)


def close(first: Any, second: Any, tolerance: int = 1) -> bool:
    return bool(np.abs(first.astype(np.int64) - second.astype(np.int64)).max() <= tolerance)


@pytest.mark.parametrize("sides", [(40, 30), (30, 40), (61, 31), (18, 18), (16, 16), (5, 9), (1, 1), (300, 20)])
def test_pixels_are_those_of_a_plain_resize_and_crop(tmp_path: Path, sides: tuple[int, int]) -> None:
    image = picture(*sides)
    assert close(pixels(saved(image, tmp_path / "x.png")), plain(image))


@pytest.mark.parametrize("ending", ["jpg", "png", "gif"])
def test_an_images_content_is_read_as_its_file_is(tmp_path: Path, ending: str) -> None:
    path = saved(picture(90, 70), tmp_path / f"a.{ending}")
    content = Path(path).read_bytes()
    assert (decode(content, SIZE, RESIZE) == pixels(path)).all()
    assert is_quick(content)
    assert is_quick(path)
    assert not is_quick(content, Limits(quick=1, small=1))
    assert not is_quick(path, Limits(quick=1, small=1))
    assert decode(content[:40], SIZE, RESIZE) == BadImage("", reason(shortened(path)))
    assert decode(b"", SIZE, RESIZE) == BadImage("", "an empty file")


def shortened(path: str) -> Path:
    short = Path(path).with_stem("short")
    short.write_bytes(Path(path).read_bytes()[:40])
    return short


def test_the_usual_sides_of_a_vit_agree_too(tmp_path: Path) -> None:
    path = saved(picture(375, 500), tmp_path / "x.jpg", quality=90)
    assert close(pixels(path, 224, 256), plain(Image.open(path), 224, 256))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photo_is_turned_as_its_metadata_say(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    turned = Image.open(saved(picture(41, 30), tmp_path / "turned.png", exif=exif))
    expected = pixels(saved(ImageOps.exif_transpose(turned), tmp_path / "upright.png"))
    assert np.array_equal(pixels(str(tmp_path / "turned.png")), expected)
    photo = saved(picture(41, 30), tmp_path / "turned.tif", exif=exif)
    assert np.array_equal(pixels(photo), expected)


def test_damaged_metadata_do_not_make_a_photo_unreadable(tmp_path: Path) -> None:
    path = saved(picture(40, 30), tmp_path / "x.jpg", exif=b"Exif\0\0II*\0\xff\xff\xff\xffnonsense")
    found = pixels(path)
    with pytest.warns(UserWarning, match="Corrupt EXIF data"):
        assert close(found, plain(Image.open(path)))


@pytest.mark.parametrize("mode", ["L", "P", "1", "LA", "RGBA"])
@pytest.mark.parametrize("ending", ["png", "tif"])
def test_every_kind_of_pixel_becomes_rgb(tmp_path: Path, mode: str, ending: str) -> None:
    image = picture(40, 30, mode)
    assert close(pixels(saved(image, tmp_path / f"x.{ending}")), plain(image))


def test_transparency_is_dropped(tmp_path: Path) -> None:
    image = picture(40, 30)
    expected = plain(image)
    image.putalpha(0)
    assert close(pixels(saved(image, tmp_path / "x.png")), expected)


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_grey_and_cmyk_photos_become_rgb(tmp_path: Path, mode: str) -> None:
    path = saved(picture(40, 30, mode), tmp_path / "x.jpg", quality=95)
    assert close(pixels(path), plain(Image.open(path)))
    assert close(pixels(path), plain(picture(40, 30).convert(mode)), 25)  # not inverted


@pytest.mark.parametrize("ending", ["png", "tif", "pgm"])
def test_sixteen_bits_are_scaled_and_not_clipped(tmp_path: Path, ending: str) -> None:
    values = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    path = saved(Image.fromarray(values), tmp_path / f"x.{ending}")
    found = pixels(path, 256, 256)
    assert np.array_equal(found[0], np.round(values / 257))
    assert np.array_equal(found[0], found[2])


@pytest.mark.parametrize(("kind", "largest"), [("f4", 1), ("i4", 2**20), ("i4", -5)])
def test_numbers_of_no_known_range_are_refused(tmp_path: Path, kind: str, largest: int) -> None:
    path = saved(Image.fromarray(np.full((20, 20), largest, dtype=kind)), tmp_path / "x.tif")
    assert "of unknown range" in reason(path)


@pytest.mark.parametrize("ending", ["gif", "tif", "png", "webp"])
def test_the_first_picture_of_several_is_taken(tmp_path: Path, ending: str) -> None:
    first, second = Image.new("RGB", (20, 20), (255, 0, 0)), Image.new("RGB", (20, 20), (0, 0, 255))
    path = saved(first, tmp_path / f"x.{ending}", save_all=True, append_images=[second])
    assert close(pixels(path), plain(first), 10)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM"])
def test_content_counts_and_not_the_name(tmp_path: Path, kind: str) -> None:
    image = Image.new("RGB", (40, 30), (250, 128, 10))
    image.save(tmp_path / "x.jpg", format=kind)
    assert close(pixels(str(tmp_path / "x.jpg")), plain(image), 8)


def test_other_formats_are_not_opened(tmp_path: Path) -> None:
    picture(40, 30).save(tmp_path / "x.jpg", format="EPS")
    assert reason(tmp_path / "x.jpg") == "not an image (JPEG, PNG, WEBP, BMP, GIF, TIFF, PPM)"


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "an empty file"), (b"not an image", "not an image (JPEG"), (b"\xff\xd8\xff", "not an image (JPEG")],
)
def test_what_is_no_image_is_said_to_be_none(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.jpg").write_bytes(content)
    assert reason(tmp_path / "x.jpg").startswith(message)


@pytest.mark.parametrize("ending", ["jpg", "png", "bmp", "tif", "ppm", "webp"])
def test_a_truncated_image_is_bad(tmp_path: Path, ending: str) -> None:
    path = Path(saved(picture(64, 64), tmp_path / f"x.{ending}"))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert reason(path)


def test_pipes_and_folders_are_bad_and_nobody_waits_for_them(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    assert reason(tmp_path / "pipe.jpg") == "not a regular file"
    assert reason(tmp_path) == "Is a directory"
    assert reason(tmp_path / "gone.jpg") == "No such file or directory"
    assert reason("/dev/zero") == "not a regular file"


def png_header(width: int, height: int) -> bytes:
    """The beginning of a PNG that claims to be large."""
    header = b"IHDR" + width.to_bytes(4) + height.to_bytes(4) + b"\x08\x02\0\0\0"
    data = b"IDAT" + zlib.compress(b"\0" * 100)
    chunks = (len(c[4:]).to_bytes(4) + c + zlib.crc32(c).to_bytes(4) for c in (header, data))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@pytest.mark.parametrize("side", [8_001, 10_000, 60_000])
def test_an_image_of_too_many_pixels_is_refused_before_it_is_decoded_and_without_a_warning(
    tmp_path: Path, side: int
) -> None:
    (tmp_path / "x.png").write_bytes(png_header(side, side))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert "pixels" in reason(tmp_path / "x.png")
    assert said == []


def claimed(jpeg: bytes, side: int) -> bytes:
    """A JPEG whose header claims a larger side."""
    frame = min(jpeg.find(b"\xff\xc0") % len(jpeg), jpeg.find(b"\xff\xc2") % len(jpeg))
    return jpeg[: frame + 5] + 2 * side.to_bytes(2) + jpeg[frame + 9 :]


def encoded(**options: Any) -> bytes:
    file = io.BytesIO()
    picture(40, 30).save(file, format="JPEG", **options)
    return file.getvalue()


def test_a_jpeg_that_must_be_held_whole_has_the_limit_of_its_full_size(tmp_path: Path) -> None:
    baseline = claimed(encoded(), 9_000)
    scan = baseline.index(b"\xff\xda")
    one_colour = baseline[:scan] + b"\xff\xda\0\x08\x01\x01\0\0\x3f\0" + baseline[scan + 14 :]
    for name, content in {"progressive": claimed(encoded(progressive=True), 9_000), "scans": one_colour}.items():
        (tmp_path / name).write_bytes(content)
        assert reason(tmp_path / name) == "81 million pixels, more than the 64 allowed"
    (tmp_path / "baseline").write_bytes(baseline)
    assert pixels(str(tmp_path / "baseline")).mean() == pytest.approx(128, abs=9)  # grey, where the file has nothing


def test_a_jpeg_of_too_many_scans_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    (tmp_path / "scans.jpg").write_bytes(many_scans(3_000))
    assert reason(tmp_path / "scans.jpg") == "more than 100 scans or 1,000 segments"
    (tmp_path / "usual.jpg").write_bytes(many_scans(50))
    assert pixels(str(tmp_path / "usual.jpg")).max() == 0


def test_a_comment_without_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "comment.ppm").write_bytes(long_comment(module.MAX_READS))
    assert reason(tmp_path / "comment.ppm") == "takes more than 1,000,000 reads to decode"
    (tmp_path / "usual.ppm").write_bytes(long_comment(1_000))
    assert pixels(str(tmp_path / "usual.ppm")).max() == 0


@pytest.mark.parametrize(
    "content",
    [
        png(*[(b"tEXt", b"a\0b")] * 500),
        b"\xff\xd8" + 500 * b"\xff\xfe\0\x02" + encoded()[2:],
        b"GIF89a\x04\0\x04\0\0\0\0" + 500 * b"!\xfe\x01x\0",
        b"II*\0\x08\0\0\0" + struct.pack("<H", 2_000) + 2_000 * struct.pack("<HHII", 1, 7, 9, 8) + bytes(100),
    ],
    ids=["PNG", "JPEG", "GIF", "TIFF"],
)
def test_a_header_of_too_many_pieces_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.setattr(module, "MAX_READS", 500)
    (tmp_path / "x").write_bytes(content)
    assert reason(tmp_path / "x") == "takes more than 500 reads to decode"


@pytest.mark.parametrize("kind", [b"zTXt", b"iTXt", b"iCCP"])
def test_text_that_is_a_bomb_is_not_unpacked(tmp_path: Path, kind: bytes) -> None:
    packed = zlib.compress(bytes(20_000_000))
    start = b"a\0\x01\0\0\0" if kind == b"iTXt" else b"a\0\0"
    (tmp_path / "bomb.png").write_bytes(png(*[(kind, start + packed)] * 20))
    tracemalloc.start()
    decode(str(tmp_path / "bomb.png"), SIZE, RESIZE)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000_000


def test_what_is_quick_to_decode_is_told_without_decoding(tmp_path: Path) -> None:
    quick = {
        "nowhere.jpg": None,
        "folder": None,
        "baseline": encoded(),
        "progressive": encoded(progressive=True),
        "small.png": png(),
        "large.jpg": encoded() + bytes(100_000),
    }
    slow = {
        "scans": many_scans(90, side=2_000),
        "pixels": claimed(encoded(), 15_000),
        "large.png": png((b"tEXt", b"a\0" + bytes(70_000))),
        "no header": b"\xff\xd8",
    }
    (tmp_path / "folder").mkdir()
    for name, content in (quick | slow).items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
    assert [name for name in quick | slow if is_quick(str(tmp_path / name))] == list(quick)


def test_a_huge_jpeg_takes_little_memory(tmp_path: Path) -> None:
    path = saved(Image.new("L", (9_000, 9_000), 77), tmp_path / "x.jpg", quality=30)
    code = (
        "import resource, sys; from cldnet.data.images.decode import decode; from PIL import Image, JpegImagePlugin\n"
        "decode('/nowhere', 224, 256); before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "found = decode(sys.argv[1], 224, 256)\n"
        "print(found.mean(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    mean, growth = subprocess.check_output([sys.executable, "-c", code, path], text=True).split()
    assert float(mean) == pytest.approx(77, abs=1)
    assert int(growth) < 30_000  # kilobytes; the whole image has 81 million pixels


@pytest.mark.parametrize("sides", [(1, 50_000), (50_000, 1), (3, 20_000)])
def test_a_long_strip_takes_no_more_memory_than_a_square(tmp_path: Path, sides: tuple[int, int]) -> None:
    path = saved(Image.new("RGB", sides, (9, 99, 199)), tmp_path / "x.png")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert pixels(path, 224, 256)[:, 0, 0].tolist() == [9, 99, 199]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


@pytest.mark.parametrize("sides", [(1200, 1000), (577, 1234)])
def test_a_jpeg_decoded_at_a_lower_scale_looks_the_same(tmp_path: Path, sides: tuple[int, int]) -> None:
    path = saved(picture(*sides), tmp_path / "x.jpg", quality=95)
    assert close(pixels(path, 64, 73), plain(Image.open(path), 64, 73), 6)


@pytest.mark.parametrize(
    "error", [MemoryError(), ZeroDivisionError("x"), KeyError("tag"), OverflowError(), RecursionError(), EOFError()]
)
def test_whatever_pillow_raises_becomes_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def failing(*_: Any, **__: Any) -> None:
        raise error

    path = saved(picture(40, 30), tmp_path / "x.png")
    monkeypatch.setattr(module, "_rgb", failing)
    assert reason(path)


FILES = {kind: io.BytesIO() for kind in ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")}
for _kind, _file in FILES.items():
    picture(24, 20).save(_file, format=_kind)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(sorted(FILES)),
    changes=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=6),
    cut=st.integers(0, 60),
)
def test_no_damaged_file_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, changes: list[tuple[int, int]], cut: int
) -> None:
    monkeypatch.setattr(module, "MAX_PIXELS", 100_000)
    content = bytearray(FILES[kind].getvalue())
    for place, value in changes:
        content[place % len(content)] = value
    (tmp_path / "x").write_bytes(content[: len(content) - cut])
    found = decode(str(tmp_path / "x"), 8, 9)
    assert found.reason.isprintable() if isinstance(found, BadImage) else found.shape == (3, 8, 8)


def test_without_pillow_a_sentence_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r'Reading images needs Pillow: pip install "\.\[images\]"'):
        decode("x.jpg", 8, 9)
