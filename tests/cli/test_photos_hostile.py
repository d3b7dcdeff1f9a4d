"""Photos that are odd, broken or meant to do harm, through the commands: each row of the table in docs/photos.md."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.data.images.hostile import long_comment, many_scans, slow_jpeg
from typer.testing import CliRunner, Result

from cldnet import cli, storage
from cldnet.data.images import decode as decoding

SMALL = ("--size", 32, "--memory", 1, "--capacity", 20)
#: Clears a screen, and looks like an answer on a line of its own.
EVIL = "wren\n\x1b[2Jrobin: eagle 100.0%"
EVIL_SHOWN = r"wren\n\x1b[2Jrobin: eagle 100.0%"


NOT_UTF8 = b"caf\xe9"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def picture(width: int = 70, height: int = 60, seed: int = 0) -> Image.Image:
    """Few colours, different in every corner, so that a palette can hold them all."""
    colours = np.random.default_rng(seed).integers(0, 256, (3, 4, 3), dtype=np.uint8)
    return Image.fromarray(colours).resize((width, height), Image.Resampling.NEAREST)


def reopened(path: Path) -> Image.Image:
    """What Pillow makes of a file, its first picture, without turning it."""
    with Image.open(path) as image:
        return image.convert("RGB")


def sixteen_bits(path: Path) -> Image.Image:
    grey = picture(seed=11).convert("L")
    Image.fromarray(np.asarray(grey).astype(np.uint16) * 257).save(path, format="PNG")
    return grey


def palette(path: Path) -> Image.Image:
    picture(seed=12).quantize(16).save(path, format="PNG")
    return reopened(path)


def turned(path: Path) -> Image.Image:
    exif = Image.Exif()
    exif[0x0112] = 6
    picture(seed=13).save(path, format="JPEG", exif=exif)
    return reopened(path).transpose(Image.Transpose.ROTATE_270)


def animated(path: Path) -> Image.Image:
    picture(seed=14).save(path, format="GIF", save_all=True, append_images=[picture(seed=1), picture(seed=2)])
    return reopened(path)


def four_inks(path: Path) -> Image.Image:
    picture(seed=15).convert("CMYK").save(path, format="JPEG")
    return reopened(path)


def half_transparent(path: Path) -> Image.Image:
    grey = picture(seed=16).convert("L")
    see_through = grey.copy()
    see_through.putalpha(Image.linear_gradient("L").resize(grey.size))
    see_through.save(path, format="PNG")
    return grey


def strip(path: Path) -> Image.Image:
    wide = picture(30_000, 2, seed=17)
    wide.save(path, format="PNG")
    return wide.crop((14_900, 0, 15_100, 2))


def one_pixel(path: Path) -> Image.Image:
    Image.new("RGB", (1, 1), (10, 100, 200)).save(path, format="PNG")
    return Image.new("RGB", (64, 64), (10, 100, 200))


def linked(path: Path) -> Image.Image:
    outside = path.parents[2] / "outside.png"
    picture(seed=5).save(outside)
    path.symlink_to(outside)
    return picture(seed=5)


#: What makes each odd photo, and gives the plain one that it should count as.
ODD: dict[str, Callable[[Path], Image.Image]] = {
    "16 bits": sixteen_bits,
    "CMYK": four_inks,
    "EXIF": turned,
    "animation": animated,
    "grey and alpha": half_transparent,
    "link": linked,
    "palette": palette,
    "pixel": one_pixel,
    "strip": strip,
}
#: Files that hold no picture, and what is said of each.
BAD = {
    "bomb.png": "pixels",
    "cut.jpg": "image file is truncated",
    "dangling.jpg": "No such file or directory",
    "empty.png": "an empty file",
    "folder.jpg": "Is a directory",
    "fraction.tif": "floating-point pixels of unknown range",
    "pipe.jpg": "not a regular file",
    "text.jpg": "not an image (JPEG, PNG, WEBP, BMP, GIF, TIFF, PPM)",
}


def make_bad(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    Image.new("1", (9_000, 9_000)).save(folder / "bomb.png")
    picture(300, 200).save(folder / "cut.jpg")
    (folder / "cut.jpg").write_bytes((folder / "cut.jpg").read_bytes()[:-2000])
    (folder / "dangling.jpg").symlink_to(folder / "gone.jpg")
    (folder / "empty.png").touch()
    (folder / "folder.jpg").mkdir()
    Image.fromarray(np.full((20, 20), 0.5, dtype=np.float32)).save(folder / "fraction.tif")
    os.mkfifo(folder / "pipe.jpg")
    (folder / "text.jpg").write_text("This is no picture.")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of odd photos with bad ones among them, and one of the plain photos that the odd ones count as."""
    monkeypatch.chdir(tmp_path)
    for name, make in ODD.items():
        for folder in ("odd", "plain"):
            (tmp_path / folder / name).mkdir(parents=True)
        make(tmp_path / "odd" / name / "photo.jpg").convert("RGB").save(tmp_path / "plain" / name / "photo.png")
    make_bad(tmp_path / "odd" / "palette")
    return tmp_path


def same_tensors(model: str, other: str) -> bool:
    ones, others = storage.read(model)[0], storage.read(other)[0]
    assert ones.pop("history").shape == others.pop("history").shape  # lessons have the names of their folders
    return ones.keys() == others.keys() and all(torch.equal(ones[name], others[name]) for name in ones)


def test_odd_photos_are_learned_as_the_plain_ones_and_bad_ones_named(place: Path) -> None:
    answer = run("learn", "model", "odd", *SMALL)
    assert answer.exit_code == 0, answer.output
    assert f"learned  {len(ODD)} photos of {len(ODD)} classes" in answer.stdout
    assert f"{len(BAD)} of {len(ODD) + len(BAD)} photos cannot be read and were left out: " in answer.stderr
    for name, reason in BAD.items():
        said = answer.stderr.partition(f"odd/palette/{name} (")[2]
        assert reason in said.partition(", odd/")[0], name
    run("learn", "plain-model", "plain", *SMALL)
    assert same_tensors("model", "plain-model")
    before = Path("model").read_bytes()
    asked = run("predict", "model", "odd", "--json")
    assert asked.exit_code == 1
    entries = {entry["photo"]: entry for entry in json.loads(asked.stdout)}
    assert {name for name in entries if "error" in entries[name]} == {f"odd/palette/{name}" for name in BAD}
    assert all(reason in entries[f"odd/palette/{name}"]["error"] for name, reason in BAD.items())
    plain = {entry["photo"]: entry for entry in json.loads(run("predict", "model", "plain", "--json").stdout)}
    for name in ODD:
        assert entries[f"odd/{name}/photo.jpg"]["top"] == plain[f"plain/{name}/photo.png"]["top"]
        assert entries[f"odd/{name}/photo.jpg"]["label"] == name
    lines = run("predict", "model", "odd").stdout.splitlines()
    assert any(line.startswith("odd/palette/cut.jpg: cannot be read (image file is truncated") for line in lines)
    assert Path("model").read_bytes() == before


def test_slow_photos_are_left_out_in_time(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding.read_photos, "__defaults__", (decoding.Limits(seconds=0),))
    hostile = {
        "slow.jpg": (slow_jpeg(), "took longer than 0 s to decode"),
        "scans.jpg": (many_scans(3_000, 2_000), "more than 100 scans or 1,000 segments"),
    }
    for name, (content, _) in hostile.items():
        (place / "plain" / "pixel" / name).write_bytes(content)
    answer = run("learn", "model", "plain", *SMALL)
    assert answer.exit_code == 0, answer.output
    assert f"learned  {len(ODD)} photos of {len(ODD)} classes" in answer.stdout
    for name, (_, reason) in hostile.items():
        assert f"plain/pixel/{name} ({reason})" in answer.stderr


def test_photos_of_too_many_reads_are_left_out(place: Path) -> None:
    (place / "plain" / "pixel" / "comment.ppm").write_bytes(long_comment(1_100_000))
    answer = run(
        "learn", "model", "plain", *SMALL
    )  # within the usual time, which a slow machine needs for a million reads
    assert answer.exit_code == 0, answer.output
    assert f"learned  {len(ODD)} photos of {len(ODD)} classes" in answer.stdout
    assert "plain/pixel/comment.ppm (takes more than 1,000,000 reads to decode)" in answer.stderr


def test_forget_takes_the_good_ones_out_and_names_the_others(place: Path) -> None:
    run("learn", "never", "plain", *SMALL)
    run("learn", "model", "plain", *SMALL)
    run("learn", "model", "odd")
    answer = run("forget", "model", "odd")
    assert answer.exit_code == 0, answer.output
    assert f"forgot  {len(ODD)} photos" in answer.stdout
    assert all(f"odd/palette/{name} (" in answer.stderr for name in BAD)
    sums = [storage.read(model)[0] for model in ("never", "model")]
    assert all(torch.equal(sums[0][name], sums[1][name]) for name in sums[0] if sums[0][name].dtype == torch.float64)
    assert any(tensor.dtype == torch.float64 for tensor in sums[0].values())


@pytest.mark.parametrize("command", ["learn", "forget"])
def test_bad_photos_alone_change_nothing(place: Path, command: str) -> None:
    run("learn", "model", "plain", *SMALL)
    before = Path("model").read_bytes()
    make_bad(place / "bad" / "palette")
    answer = run(command, "model", "bad")
    assert answer.exit_code != 0
    assert str(answer.exception).startswith(f"None of the {len(BAD)} photos under 'bad' can be read: ")
    assert Path("model").read_bytes() == before
    assert run("learn", "new", "bad", *SMALL).exit_code != 0
    assert not Path("new").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_named(place: Path) -> None:
    run("learn", "model", "plain", *SMALL)
    (place / "odd/pixel/photo.jpg").chmod(0)
    (place / "odd/strip").chmod(0)
    asked = run("predict", "model", "odd")
    (place / "odd/strip").chmod(0o700)
    assert asked.exit_code == 1
    assert "odd/pixel/photo.jpg: cannot be read (Permission denied)" in asked.stdout
    assert "odd/strip: cannot be read (Permission denied)" in asked.stdout


@pytest.mark.parametrize("command", ["learn", "predict", "forget"])
def test_hidden_files_and_other_files_are_passed_over(place: Path, command: str) -> None:
    run("learn", "model", "plain", *SMALL)
    for name in (
        "pixel/.photo.jpg",
        "pixel/._photo.png",
        "pixel/photo.heic",
        "pixel/notes.txt",
        "__MACOSX/pixel/x.jpg",
    ):
        (place / "plain" / name).parent.mkdir(parents=True, exist_ok=True)
        (place / "plain" / name).write_text("no image")
    answer = run(command, "model", "plain")
    assert answer.exit_code == 0, answer.output
    if command != "predict":
        assert f"{len(ODD)} photos" in answer.stdout
        assert "5 other files were skipped: hidden, " in answer.stderr


def test_links_in_a_circle_are_followed_once(place: Path) -> None:
    run("learn", "model", "plain", *SMALL)
    (place / "plain/pixel/round").symlink_to(place / "plain")
    (place / "linked").symlink_to(place / "plain/pixel")
    assert len(run("predict", "model", "plain").stdout.splitlines()) == len(ODD)
    assert run("predict", "model", "linked").stdout.startswith("linked/photo.png: pixel ")


def hostile_names(folder: Path, make: Callable[[Path], Any]) -> None:
    for name in (EVIL.encode(), NOT_UTF8, "c1 \x9b2J".encode(), "turned \u202e".encode(), "grün".encode()):
        make(folder / os.fsdecode(name + b".jpg"))


SHOWN = {f"{EVIL_SHOWN}.jpg", r"caf\xe9.jpg", r"c1 \x9b2J.jpg", r"turned \u202e.jpg", "grün.jpg"}


def test_names_reach_the_terminal_as_one_line_without_escapes(place: Path) -> None:
    run("learn", "model", "plain", *SMALL)
    (place / "names").mkdir()
    hostile_names(place / "names", picture().save)
    said = run("predict", "model", "names").stdout.splitlines()
    assert {line.removeprefix("names/").rpartition(": ")[0] for line in said} == SHOWN
    assert all(line.isprintable() for line in said)
    hostile_names(
        place / "broken" / "pixel", lambda path: (path.parent.mkdir(parents=True, exist_ok=True), path.touch())
    )
    picture().save(place / "broken" / "pixel" / "good.png")
    left_out = run("learn", "model", "broken")
    assert left_out.exit_code == 0, left_out.output
    assert all(f"broken/pixel/{name} (an empty file)" in left_out.stderr for name in SHOWN)
    assert all(line.isprintable() for line in left_out.stderr.splitlines())


def test_json_gives_names_back_as_they_are(place: Path) -> None:
    run("learn", "model", "plain", *SMALL)
    (place / "names").mkdir()
    hostile_names(place / "names", picture().save)
    text = run("predict", "model", "names", "--json").stdout
    assert all(line.isprintable() for line in text.splitlines())
    assert "grün" in text
    assert {Path(entry["photo"]) for entry in json.loads(text)} == {*(place / "names").relative_to(place).iterdir()}


def test_labels_reach_the_terminal_in_the_same_way(place: Path) -> None:
    (place / "birds" / EVIL).mkdir(parents=True)
    picture().save(place / "birds" / EVIL / "photo.png")
    learned = run("learn", "model", "birds", *SMALL)
    assert f"new  {EVIL_SHOWN}\n" in learned.stdout
    assert f"photo.png: {EVIL_SHOWN} 100.0%\n" in run("predict", "model", "birds").stdout
    assert EVIL_SHOWN in run("inspect", "model").stdout
    assert run("predict", "model", "birds", "--json").stdout.count("\x1b") == 0
    (place / "french" / os.fsdecode(NOT_UTF8)).mkdir(parents=True)
    picture().save(place / "french" / os.fsdecode(NOT_UTF8) / "photo.png")
    refused = run("learn", "model", "french")
    assert "is not UTF-8: it cannot be a label. Rename it." in str(refused.exception)


def test_errors_do_not_print_escapes_either(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise ValueError(f"Something is wrong with {os.fsdecode(NOT_UTF8)}, {EVIL}.")

    monkeypatch.setattr(cli, "app", fails)
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    said = capsys.readouterr().err
    assert said.startswith("Error: Something is wrong with caf\\xe9, wren\n\\x1b[2Jrobin")


def test_many_photos_go_batch_by_batch_and_ten_bad_ones_are_named(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cldnet.cli.learn.BATCH", 16)
    (place / "many" / "dot").mkdir(parents=True)
    for number in range(36):
        path = place / "many" / "dot" / f"{number:03}.png"
        if number % 3 == 0:
            path.write_text("no image")
        else:
            Image.new("RGB", (2, 2), (number, 0, 99)).save(path)
    answer = run("learn", "model", "many", *SMALL)
    assert answer.exit_code == 0, answer.output
    assert "learned  24 photos of 1 class" in answer.stdout
    assert "12 of 36 photos cannot be read and were left out: many/dot/000.png (" in answer.stderr
    assert answer.stderr.count("not an image") == 10
    assert answer.stderr.rstrip().endswith("), and 2 more.")
    asked = run("predict", "model", "many")
    assert asked.exit_code == 1
    assert [line.partition(":")[0] for line in asked.stdout.splitlines()] == [f"many/dot/{n:03}.png" for n in range(36)]
    assert asked.stdout.count("cannot be read (not an image") == 12
