"""Files that lie, or are made to fill the memory: one line that names them, and nothing more."""

from __future__ import annotations

import csv
import io
import struct
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gflowout.app import yamls
from gflowout.app.files import read_arrays
from gflowout.app.predict import write
from gflowout.core.text import inert
from gflowout.data.errors import DataError

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level + 1}: &a{level + 1} [{', '.join([f'*a{level}'] * 9)}]\n" for level in range(12)
)
CHAIN = "a0: &a0 x\n" + "".join(f"a{n + 1}: &a{n + 1} [*a{n}]\n" for n in range(5000))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LAUGHS, "more than 100000 values or 40 levels on line 6, aliases written out"),
        (CHAIN, "more than 100000 values or 40 levels on line 41, aliases written out"),
        ("a: &a [1, *a]", "the value on line 1 contains itself"),
        ("[" * 100_000, "nested more than 40 levels deep"),
        ("- " * 100_000, "nested more than 40 levels deep"),
        ("fit:\n  seed: " + "9" * 5000, "the integer on line 2 is beyond 64 bits"),
        ("seed: 0x" + "f" * 5000, "the integer on line 1 is beyond 64 bits"),
        ("seed: 1" + ":59" * 5000, "the integer on line 1 is beyond 64 bits"),
        ("seed: -9223372036854775809", "the integer on line 1 is beyond 64 bits"),
        ("seed: !!int x", "a value does not fit its tag"),
        ("seed: !!bool perhaps", "a value does not fit its tag"),
    ],
)
def test_yaml_that_is_hostile(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(yamls.ConfigError, match=message) as raised:
        yamls.read_yaml(path)
    assert str(raised.value).startswith(f"{path}: not YAML (")
    assert len(raised.value.problems) == len(str(raised.value).splitlines()) == 1
    with pytest.raises(yamls.ConfigError, match="seed"):
        yamls.parse_overrides(["seed=" + "9" * 5000])


def test_yaml_that_is_not() -> None:
    assert yamls.parse("a: &a {x: 1}\nb: [*a, *a]") == {"a": {"x": 1}, "b": [{"x": 1}] * 2}
    assert yamls.parse("[9223372036854775807, -9223372036854775807]") == [2**63 - 1, 1 - 2**63]
    assert yamls.parse("[0x10, 0b11, 1_000]") == [16, 3, 1000]
    assert len(yamls.parse(f"[{', '.join('x' * 50_000)}]")) == 50_000


def npy(values: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, values)
    return stream.getvalue()


def archive(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as content:
        for name, data in members.items():
            content.writestr(f"{name}.npy", data)
    return path


def relabelled(content: bytes, shape: str = "(6,)", dtype: str = "'<f8'") -> bytes:
    """An array of six numbers whose header says something else."""
    header = content[10:128].decode().rstrip()
    changed = header.replace("(6,)", shape).replace("'<f8'", dtype)
    assert changed != header
    return content[:10] + changed.ljust(117).encode() + b"\n" + content[128:]


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": "(1000000000000,)"},
        {"shape": "(100000, 100000, 100000, 100000)"},
        {"shape": "(7,)"},
        {"shape": "(5,)"},
        {"shape": "(-1,)"},
        {"dtype": "'<U90000000'"},
        {"shape": "(1000000000000,)", "dtype": "'<U0'"},
        {"dtype": "'<f4'"},
    ],
    ids=str,
)
def test_npz_headers_that_lie(changes: dict[str, str], tmp_path: Path) -> None:
    path = archive(tmp_path / "a.npz", x=relabelled(npy(np.zeros(6)), **changes))
    with pytest.raises(DataError, match=r"^\S+a\.npz: the header of 'x\.npy' says") as raised:
        read_arrays(path)
    assert len(str(raised.value).splitlines()) == 1


def test_npz_that_unpacks_to_gigabytes(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.npz", x=npy(np.zeros(10**5)))
    content = path.read_bytes()
    sizes = struct.pack("<I", len(npy(np.zeros(10**5))))
    assert content.count(sizes) == 2  # in the header of the member and in the directory
    path.write_bytes(content.replace(sizes, struct.pack("<I", 2**31)))
    with pytest.raises(DataError, match=r"a\.npz: \d+ bytes that unpack to 2147483648"):
        read_arrays(path)


def test_npz_with_any_byte_changed_is_read_or_refused(tmp_path: Path) -> None:
    path, draw = tmp_path / "a.npz", np.random.default_rng(0)
    whole = archive(path, x=npy(np.arange(6.0)), y=npy(np.arange(6))).read_bytes()
    messages = []
    for _ in range(300):
        damaged = bytearray(whole)
        for place in draw.integers(0, len(whole), draw.integers(1, 4)):
            damaged[place] = draw.integers(256)
        path.write_bytes(damaged)
        try:
            read_arrays(path)
        except DataError as error:
            messages.append(str(error))
    assert len(messages) > 100
    assert all(message.startswith(f"{path}: ") for message in messages)


def test_npz_that_is_right_is_read(tmp_path: Path) -> None:
    arrays = {
        "x": np.zeros((3, 2)),
        "y": np.array(["a", "", "b"]),
        "flags": np.array([True]),
        "none": np.zeros((0, 4)),
        "scalar": np.array(3),
        "fields": np.zeros(2, [("größe", "f8"), ("n", "i4")]),
    }
    for store in (np.savez, np.savez_compressed):
        store(tmp_path / "a.npz", **arrays)
        loaded = read_arrays(tmp_path / "a.npz")
        assert loaded.keys() == arrays.keys()
        assert all(np.array_equal(loaded[name], arrays[name]) for name in arrays)
    np.savez(tmp_path / "a.npz", x=np.array([{}]))
    with pytest.raises(DataError, match=r"cannot be read as NPZ .*allow_pickle"):
        read_arrays(tmp_path / "a.npz")


def test_csv_has_no_live_formula(tmp_path: Path) -> None:
    names = ["=1+1", "+a", "-a", "@SUM(A1)", "\t=1", "\r=1", "-1.5", "+2", "a\r=b", "", "a\n=b"]
    frame = pd.DataFrame({"file": names, "prediction": names, "p_=a": np.linspace(-1, 1, 11)})
    write(frame, tmp_path / "p.csv")
    read = pd.read_csv(tmp_path / "p.csv", dtype=str, keep_default_na=False)
    with (tmp_path / "p.csv").open(newline="") as stream:
        assert len(list(csv.reader(stream))) == 12
    wanted = [
        "'=1+1",
        "'+a",
        "'-a",
        "'@SUM(A1)",
        "'\t=1",
        "' =1",
        "-1.5",
        "+2",
        "a =b",
        "",
        "a\n=b",
    ]
    assert read["file"].tolist() == read["prediction"].tolist() == wanted
    assert read["p_=a"].astype(float).tolist() == frame["p_=a"].tolist()
    assert not any(name.startswith(("=", "+", "-", "@")) for name in read.columns)
    assert frame["file"].tolist() == names  # the table itself is as it was
    write(frame, tmp_path / "p.parquet")
    assert pd.read_parquet(tmp_path / "p.parquet")["file"].tolist() == names


@given(st.text(alphabet="=+-@\t\r1.ea'", max_size=8))
def test_a_cell_is_a_number_or_no_formula(cell: str) -> None:
    shown = inert(cell)
    assert cell.replace("\r", " ") in (shown, shown.removeprefix("'"))
    if shown.startswith(tuple("=+-@\t\r")):
        float(shown)
