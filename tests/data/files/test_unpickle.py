"""Pickles are read as data: nothing in them runs, whatever they say."""

from __future__ import annotations

import os
import pickle
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cldnet.data.files.unpickle import safe_unpickle

DATA = np.arange(24, dtype=np.uint8).reshape(4, 6)
BATCH: dict[Any, Any] = {
    b"data": DATA,
    "labels": [3, 0, 9, 1],
    b"names": [b"a.png", b"b.png"],
    "more": (1, 2.5, None, True),
}
#: What Python 2 and its cPickle wrote: short strings, numpy.core, and the array's bytes as a string.
PYTHON_2 = (
    b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b\x87Rq\x05"
    b"(K\x01K\x04K\x06\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07"
    b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T\x18\x00\x00\x00" + DATA.tobytes() + b"tb"
    b"U\x06labelsq\x08]q\x09(K\x03K\x00K\x09K\x01eu."
)
PROTOCOL_0 = (
    b"(dp1\nS'num_cases_per_batch'\np2\nI10000\nsS'label_names'\np3\n(lp4\nS'airplane'\np5\naS'it\\'s'\np6\nas."
)


@pytest.fixture
def read(tmp_path: Path) -> Callable[[bytes], Any]:
    def write_and_read(content: bytes) -> Any:
        path = tmp_path / "batch"
        path.write_bytes(content)
        return safe_unpickle(path)

    return write_and_read


def same(first: Any, second: Any) -> bool:
    if isinstance(first, np.ndarray):
        return type(second) is np.ndarray and first.dtype == second.dtype and np.array_equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        return type(first) is type(second) and len(first) == len(second) and all(map(same, first, second))
    return type(first) is type(second) and bool(first == second)


def is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(type(key) in (bytes, str) for key in value) and all(map(is_plain, value.values()))
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "iu"
    return type(value) in (bytes, str, bool, int, float, type(None))


@pytest.mark.parametrize("protocol", range(1, 6))
@pytest.mark.parametrize("module", [b"numpy._core", b"numpy.core"])
def test_what_python_3_wrote_comes_back(read: Callable[[bytes], Any], protocol: int, module: bytes) -> None:
    content = pickle.dumps(BATCH, protocol=protocol)
    if protocol < 4:  # from there on names have a length before them
        content = content.replace(b"numpy._core", module).replace(b"numpy.core", module)
    assert same(read(content), BATCH)


@pytest.mark.parametrize("name", ["_core", "core"])
@pytest.mark.parametrize("protocol", [4, 5])
def test_names_of_older_numpy_are_known_in_new_protocols(
    read: Callable[[bytes], Any], protocol: int, name: str
) -> None:
    content = pickle.dumps(BATCH, protocol=protocol)
    for tail in (b"multiarray", b"numeric"):
        for present in (b"numpy._core.", b"numpy.core."):
            old, new = present + tail, f"numpy.{name}.".encode() + tail
            content = content.replace(bytes([0x8C, len(old)]) + old, bytes([0x8C, len(new)]) + new)
    framed = bytearray(content)
    framed[3:11] = struct.pack("<Q", len(content) - 11)
    assert same(read(bytes(framed)), BATCH)


def test_what_python_2_wrote_comes_back_as_bytes(read: Callable[[bytes], Any]) -> None:
    expected = {b"data": DATA, b"labels": [3, 0, 9, 1]}
    assert same(pickle.loads(PYTHON_2, encoding="bytes"), expected)  # it is what it claims to be
    assert same(read(PYTHON_2), expected)
    expected = {b"num_cases_per_batch": 10000, b"label_names": [b"airplane", b"it's"]}
    assert pickle.loads(PROTOCOL_0, encoding="bytes") == expected
    assert same(read(PROTOCOL_0), expected)


LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
PLAIN = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text() | st.binary(), inner) | st.tuples(inner) | st.tuples(inner, inner)
    ),
    max_leaves=20,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=PLAIN, protocol=st.integers(3, 5))
def test_all_plain_data_come_back(read: Callable[[bytes], Any], value: Any, protocol: int) -> None:
    assert same(read(pickle.dumps(value, protocol=protocol)), value)


@pytest.mark.parametrize("dtype", ["u1", "i1", "<u2", ">i4", "<i8", ">u8"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_arrays_of_whole_numbers_come_back(read: Callable[[bytes], Any], dtype: str, order: str, protocol: int) -> None:
    array = np.array(np.arange(24).reshape(2, 3, 4), dtype=dtype, order=order)  # type: ignore[call-overload]
    shared = read(pickle.dumps([array, array], protocol=protocol))
    assert same(shared, [array, array])
    assert shared[0] is shared[1]


class Evil:
    """Calls a function when it is unpickled."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call


def attacks(command: str) -> dict[str, bytes]:
    """Pickles that make a file, in all the ways that a pickle can call something."""
    text = command.encode()
    string = b"X" + struct.pack("<I", len(text)) + text
    python = f"__import__('os').system({command!r})".encode()
    short = b"\x8c" + bytes([len(python)]) + python
    found: dict[str, bytes] = {
        "REDUCE": b"cos\nsystem\n(" + string + b"tR.",
        "INST": b"(" + string + b"ios\nsystem\n.",
        "OBJ": b"(cos\nsystem\n" + string + b"o.",
        "STACK_GLOBAL": b"\x80\x04\x8c\x02os\x8c\x06system\x93" + string + b"\x85R.",
        "eval": b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93" + short + b"\x85R.",
        "Python 2": b"c__builtin__\neval\n(" + short + b"tR.",
        "memo": b"\x80\x04cos\nsystem\nq\x000h\x00" + string + b"\x85R.",
        "dotted": b"\x80\x04\x8c\x05numpy\x8c\x0ef2py.os.system\x93" + string + b"\x85R.",
        "late": pickle.dumps({b"data": DATA})[:-1] + b"cos\nsystem\n" + string + b"\x85R.",
    }
    for protocol in range(6):
        found[f"in a dict, protocol {protocol}"] = pickle.dumps({b"data": Evil(os.system, command)}, protocol)
        found[f"in a list, protocol {protocol}"] = pickle.dumps([DATA, [Evil(eval, python.decode())]], protocol)
    return found


@pytest.mark.parametrize("name", attacks("true"))
def test_no_attack_runs_code(tmp_path: Path, read: Callable[[bytes], Any], name: str) -> None:
    marker = tmp_path / "marker"
    content = attacks(f"touch {marker}")[name]
    pickle.loads(content)
    assert marker.exists()  # in pickle's own hands it would have run
    marker.unlink()
    with pytest.raises(
        ValueError, match=r"batch is no pickle of plain data: it .*(system|eval).* Nothing was executed"
    ):
        read(content)
    assert not marker.exists()


HOSTILE: dict[str, tuple[bytes, str]] = {
    "NEWOBJ": (b"\x80\x02cos\nsystem\n(S'true'\nt\x81.", "asks for 'os.system'"),
    "NEWOBJ of an admitted name": (b"\x80\x02cnumpy\nndarray\n)\x81.", "instruction NEWOBJ"),
    "NEWOBJ_EX": (b"\x80\x04cnumpy\nndarray\n)}\x92.", "instruction NEWOBJ_EX"),
    "extension code": (b"\x80\x02\x82\x01.", "instruction EXT1"),
    "persistent id": (b"Psomething\n.", "instruction PERSID for 'something'"),
    "persistent id on the stack": (b"S'x'\nQ.", "instruction BINPERSID"),
    "buffer": (b"\x80\x05\x97.", "instruction NEXT_BUFFER"),
    "numpy.load": (pickle.dumps(Evil(np.load, "x.npy", None, True)), "asks for 'numpy.load'"),
    "copyreg": (b"ccopy_reg\n_reconstructor\n.", "asks for 'copy_reg._reconstructor'"),
    "set": (pickle.dumps({1, 2}), "instruction EMPTY_SET"),
    "object array": (pickle.dumps(np.array([[], None], dtype=object)), "'O8', which is no type of whole numbers"),
    "structured array": (pickle.dumps(np.zeros(2, "u1,u2")), "'V3', which is no type of whole numbers"),
    "floats": (pickle.dumps(np.zeros(2)), "'f8', which is no type of whole numbers"),
    "a type alone": (pickle.dumps(np.dtype("u1")), "leave something unfinished"),
    "a name alone": (b"cnumpy\nndarray\n.", "leave something unfinished"),
    "a mark alone": (b"(.", "leave something unfinished"),
    "calling a list": (b"]]R.", "calls what is no function"),
    "calling the array type": (b"cnumpy\nndarray\n)R.", "calls what is no function"),
    "calling a name with a list": (b"cnumpy\ndtype\n]R.", "calls what is no function"),
    "an unfinished array": (PYTHON_2[: PYTHON_2.index(b"(K\x01")] + b"u.", "leave something unfinished"),
    "building a list": (b"])b.", "builds what is no array"),
    "another encoding": (b"c_codecs\nencode\n(X\x01\x00\x00\x00aX\x05\x00\x00\x00rot13tR.", "encodes what is no text"),
    "appending to a dict": (b"}Na.", "appends to what is no list"),
    "a number as key": (b"}I1\nNs.", "keys other than text"),
    "array too short": (
        PYTHON_2.replace(b"K\x04K\x06\x86", b"K\x05K\x06\x86"),
        r"array of shape \(5, 6\) .* with 24 bytes",
    ),
    "array of negative size": (PYTHON_2.replace(b"K\x04K\x06\x86", b"K\x04J\xfa\xff\xff\xff\x86"), "absurd shape"),
    "array with fields": (PYTHON_2.replace(b"|NNN", b"|N)N"), "a type that is more than a number"),
    "subclass of an array": (PYTHON_2.replace(b"K\x00\x85U\x01b", b"K\x01\x85U\x01b"), "array of an unknown kind"),
    "empty": (b"", "damaged .*pickle exhausted before seeing STOP"),
    "text": (b"hello", "damaged"),
    "two of them": (b"N.N.", "something behind its end"),
    "nothing on the stack": (b".", "damaged"),
    "popping nothing": (b"a.", "damaged"),
    "an unknown place": (b"h\x07.", "damaged"),
    "length beyond the file": (b"\x80\x04\x8e" + struct.pack("<Q", 2**60) + b"x.", "damaged"),
    "odd dict": (b"(S'x'\nd.", "damaged"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_pickles_are_refused_with_a_sentence(read: Callable[[bytes], Any], name: str) -> None:
    content, complaint = HOSTILE[name]
    with pytest.raises(ValueError, match=f"batch is no pickle of plain data: .*{complaint}") as caught:
        read(content)
    assert "Nothing was executed. Get the official file, for example with 'cldnet data get cifar-10'." in str(
        caught.value
    )


VALID = [PYTHON_2, PROTOCOL_0, *(pickle.dumps(BATCH, protocol=protocol) for protocol in range(1, 6))]


@settings(deadline=None, max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.sampled_from(VALID),
    flips=st.lists(st.tuples(st.floats(0, 0.999), st.integers(1, 255)), max_size=4),
    cut=st.floats(0, 1),
)
def test_damaged_pickles_give_plain_data_or_a_sentence(
    read: Callable[[bytes], Any], content: bytes, flips: list[tuple[float, int]], cut: float
) -> None:
    damaged = bytearray(content if cut > 0.7 else content[: int(len(content) * cut / 0.7)])
    for place, bits in flips if damaged else ():
        damaged[int(place * len(damaged))] ^= bits
    try:
        assert is_plain(read(bytes(damaged)))
    except ValueError as error:
        assert "Nothing was executed" in str(error)  # noqa: PT017


PIECES = [bytes([code]) for code in b"()]}Nt\x85\x86\x87Rbasue"] + [b"K\x01", b"q\x00", b"h\x00", b"U\x02u1"]
PIECES += [b"cnumpy\ndtype\n", b"cnumpy\nndarray\n", b"cnumpy.core.multiarray\n_reconstruct\n", b"c_codecs\nencode\n"]


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=30))
def test_any_sequence_of_admitted_instructions_gives_plain_data_or_a_sentence(
    read: Callable[[bytes], Any], pieces: list[bytes]
) -> None:
    try:
        value = read(b"".join(pieces) + b".")
    except ValueError as error:
        assert "Nothing was executed" in str(error)  # noqa: PT017
        return
    try:
        assert is_plain(value)
    except RecursionError:
        assert b"h\x00" in pieces  # a list that holds itself


def test_what_would_fill_the_memory_is_refused(read: Callable[[bytes], Any]) -> None:
    tracemalloc.start()
    text = b"X" + struct.pack("<I", 1 << 20) + b"a" * (1 << 20)
    encode = b"h\x00(h\x01X\x06\x00\x00\x00latin1tR"
    with pytest.raises(ValueError, match="encodes what is no text of bytes"):
        read(b"](c_codecs\nencode\nq\x00" + text + b"q\x01" + encode * 100 + b"e.")
    assert read(b"Nr\xff\xff\xff\xff.") is None  # pickle would make room for 2³² places
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20


def test_nesting_without_end_and_circles_do_no_harm(read: Callable[[bytes], Any]) -> None:
    deep = read(b"N" + b"\x85" * 200_000 + b".")
    assert type(deep) is tuple
    with pytest.raises(ValueError, match="keys other than text"):  # its hash would overflow the interpreter's stack
        read(b"}N" + b"\x85" * 200_000 + b"Ns.")
    circle = read(b"]q\x00h\x00a.")
    assert circle[0] is circle


def test_a_file_beyond_a_gibibyte_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "huge"
    path.touch()
    os.truncate(path, (1 << 30) + 1)
    with pytest.raises(ValueError, match="huge is no pickle of plain data: it is larger than 1,073,741,824 bytes"):
        safe_unpickle(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"There is no file .*nowhere"):
        safe_unpickle(tmp_path / "nowhere")
