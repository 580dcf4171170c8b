"""``gflowout data`` on small files in the published formats, and on real copies."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import data_files
import pytest
import torch
from data_files import write_idx, write_mnist
from PIL import Image
from typer.testing import CliRunner

from gflowout.cli import commands
from gflowout.data import download, report, store
from gflowout.data.errors import DataError
from gflowout.data.store import ENTRIES

runner = CliRunner(env={"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"})


def run(*arguments: object):
    return runner.invoke(commands.app, ["data", *map(str, arguments)])


def plain(text: str) -> str:
    """Text without the places where lines were broken or padded."""
    return " ".join(text.replace("│", " ").split())


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory with a little MNIST whose checksums the catalogue knows."""
    folder = tmp_path / "data" / "mnist"
    write_mnist(folder, 20)
    files = tuple(
        replace(file, checksum=f"md5:{store.digest(folder / file.name, 'md5')}")
        for file in ENTRIES["mnist"].files
    )
    monkeypatch.setitem(ENTRIES, "mnist", replace(ENTRIES["mnist"], files=files))
    monkeypatch.setattr(store, "_candidates", _without_packages(store._candidates))
    return folder.parent


def _without_packages(candidates):
    return lambda wanted, base: candidates(replace(wanted, package=None), base)


def write_cifar10(root: Path, *batches: int) -> None:
    data_files.write_cifar10(root / "cifar-10-batches-py", 20, batches)


def write_cifar10_c(root: Path, kinds: tuple[str, ...]) -> Path:
    data_files.write_cifar_c(root / "CIFAR-10-C", 10, kinds)
    return root / "CIFAR-10-C"


class TestList:
    def test_every_data_set_is_named_with_its_licence(self, root):
        result = run("list", "--data-dir", root)
        assert result.exit_code == 0
        text = plain(result.stdout)
        for entry in ENTRIES.values():
            assert entry.name in text
        assert f"data directory: {root}" in text
        assert "licence: CC BY-SA 3.0; in mnist" in text
        assert max(map(len, result.stdout.splitlines())) <= 80 + len(str(root))
        assert "…" not in result.stdout

    def test_there_in_part_missing_and_by_hand(self, root):
        write_cifar10(root, 1, 2)
        rows = {
            line.split()[0]: line.split()[1:]
            for line in run("list", "--data-dir", root).stdout.splitlines()[2:]
            if line and not line.startswith(" ")
        }
        size = sum(path.stat().st_size for path in (root / "mnist").iterdir())
        assert rows["mnist"][:3] == ["yes", *download.readable(size).split()]
        assert rows["cifar10"][:2] == ["in", "part"]
        assert rows["svhn"][:2] == ["no", "(246"]
        assert rows["eicu"][:2] == ["by", "hand"]
        assert rows["easy-vqa"][:2] == ["by", "hand"]
        text = plain(run("list", "--data-dir", root).stdout)
        assert "missing: data_batch_3, data_batch_4, data_batch_5" in text

    def test_data_set_of_a_package_is_found(self, tmp_path):
        pytest.importorskip("easy_vqa")
        assert "in the package easy_vqa" in plain(run("list", "--data-dir", tmp_path).stdout)

    def test_environment_names_the_directory(self, root):
        result = runner.invoke(commands.app, ["data", "list"], env={store.VARIABLE: str(root)})
        assert f"data directory: {root}" in result.stdout

    def test_no_such_directory(self, tmp_path):
        result = run("list", "--data-dir", tmp_path / "none")
        assert result.exit_code == 1
        assert "must name a directory that exists" in result.stderr
        assert "Traceback" not in result.output


class TestGet:
    def test_options_are_passed_on_and_folders_printed(self, monkeypatch, tmp_path):
        seen = []

        def get(name, data_dir, **options):
            seen.append((name, data_dir, options))
            return tmp_path / name

        monkeypatch.setattr(download, "get", get)
        result = run("get", "mnist", "frost", "--data-dir", tmp_path, "--quiet", "--force")
        assert result.exit_code == 0
        options = {"progress": False, "force": True}
        assert seen == [("mnist", tmp_path, options), ("frost", tmp_path, options)]
        assert result.stdout == f"mnist: {tmp_path / 'mnist'}\nfrost: {tmp_path / 'frost'}\n"
        run("get", "mnist")
        assert seen[-1] == ("mnist", None, {"progress": True, "force": False})

    def test_what_is_there_needs_no_network(self, root):
        result = run("get", "mnist", "--data-dir", root)
        assert result.exit_code == 0
        assert result.stdout == f"mnist: {root / 'mnist'}\n"

    def test_what_must_be_got_by_hand(self, root):
        result = run("get", "eicu", "--data-dir", root)
        assert result.exit_code == 1
        assert "signed agreement" in result.stderr
        assert result.stdout == ""

    def test_failure_is_one_line_and_the_others_are_fetched(self, monkeypatch):
        def get(name, *_, **__):
            if name == "mnist":
                raise DataError("http://x: the server answered 404")
            return name

        monkeypatch.setattr(download, "get", get)
        result = run("get", "mnist", "frost")
        assert result.exit_code == 1
        assert result.stderr.splitlines() == [
            "mnist: 11.6 MB at most; licence: CC BY-SA 3.0",
            "http://x: the server answered 404",
            "frost: 2.09 MB at most; licence: Apache-2.0",
        ]
        assert result.stdout == "frost: frost\n"

    def test_ctrl_c_says_what_is_kept(self, monkeypatch):
        def get(*_, **__):
            raise KeyboardInterrupt("it is kept")

        monkeypatch.setattr(download, "get", get)
        result = run("get", "mnist", "--quiet")
        assert (result.exit_code, result.stderr) == (130, "interrupted: it is kept\n")

    def test_nothing_known_is_not_well(self, tmp_path):
        """A mistyped directory must not pass for a good one because a package brings data."""
        result = run("check", "--data-dir", tmp_path)
        assert result.exit_code == 1
        assert "no data set here" in result.stderr

    def test_one_folder_that_cannot_be_read_does_not_hide_the_others(self, root, monkeypatch):
        real = store.files

        def files(wanted, folder):
            if wanted.name == "svhn":
                raise DataError(f"{folder}: cannot be read (Permission denied)")
            return real(wanted, folder)

        monkeypatch.setattr(store, "files", files)
        result = run("list", "--data-dir", root)
        assert result.exit_code == 0
        assert "cannot be read" in plain(result.stdout)
        assert "in mnist" in plain(result.stdout)

    @pytest.mark.parametrize("command", ["get", "check", "show"])
    def test_unknown_names_are_wrong_usage(self, command):
        result = run(command, "minst", *(["--out", "x.png"] if command == "show" else []))
        assert result.exit_code == 2
        assert "did you mean 'mnist'?" in plain(result.stderr)


class TestCheck:
    def test_all_is_well(self, root):
        result = run("check", "mnist", "--data-dir", root)
        assert result.exit_code == 0, result.output
        text = plain(result.stdout)
        assert text.count(report.MATCHES) == 4
        assert "train 20 images 1x28x28, 2 of each class" in text
        assert "test 20 images 1x28x28, 2 of each class" in text
        for part in ("all is well", "CC BY-SA 3.0", ENTRIES["mnist"].home, "LeCun"):
            assert part in text

    def test_a_changed_file_is_reported_and_still_read(self, root):
        path = root / "mnist" / "t10k-labels-idx1-ubyte.gz"
        write_idx(path, torch.zeros(20))
        result = run("check", "mnist", "--data-dir", root)
        assert result.exit_code == 1
        text = plain(result.stdout)
        assert f"problem: {path.name} {report.DIFFERS}" in text
        assert "test 20 images 1x28x28, 0 to 20 of each class" in text
        assert "gflowout data get mnist" in text

    def test_a_damaged_file_does_not_hide_the_others(self, root):
        path = root / "mnist" / "t10k-images-idx3-ubyte.gz"
        path.write_bytes(path.read_bytes()[:-100])
        result = run("check", "mnist", "--data-dir", root)
        assert result.exit_code == 1
        text = plain(result.stdout)
        assert "train 20 images" in text
        assert f"problem: {path}" in text

    def test_an_unpacked_file_cannot_be_compared(self, root):
        packed = root / "mnist" / "t10k-labels-idx1-ubyte.gz"
        packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
        packed.unlink()
        result = run("check", "mnist", "--data-dir", root)
        assert result.exit_code == 0
        assert report.UNPACKED in plain(result.stdout)

    def test_part_of_cifar_10(self, root):
        write_cifar10(root, 1, 2)
        result = run("check", "cifar10", "--data-dir", root)
        assert result.exit_code == 1
        text = plain(result.stdout)
        assert "train 40 images 3x32x32, 4 of each class; 2 of 5 files" in text
        for number in (3, 4, 5):
            assert f"problem: data_batch_{number} is missing" in text

    def test_published_corruptions(self, root):
        folder = write_cifar10_c(root, ("snow", "frost", "gaussian_noise"))
        result = run("check", "cifar10-c", "--data-dir", root)
        assert result.exit_code == 0, result.output
        assert "snow 5 severities of 10 images 3x32x32, 1 of each class" in plain(result.stdout)
        (folder / "frost.npy").write_bytes(b"no array")
        result = run("check", "cifar10-c", "--data-dir", root)
        assert result.exit_code == 1
        assert "snow 5 severities" in plain(result.stdout)
        assert f"problem: {folder / 'frost.npy'}" in plain(result.stdout)

    def test_without_names_all_that_are_there(self, root):
        write_cifar10(root, 1)
        result = run("check", "--data-dir", root)
        assert result.exit_code == 1
        text = plain(result.stdout)
        assert "mnist - MNIST" in text
        assert "cifar10 - CIFAR-10" in text
        assert "svhn" not in text
        assert text.endswith("incomplete: cifar10")

    def test_nothing_there(self, root, tmp_path):
        assert run("check", "--data-dir", tmp_path).exit_code == 1
        result = run("check", "svhn", "mnist", "--data-dir", root)
        assert result.exit_code == 1
        text = plain(result.stdout)
        assert "svhn: missing." in text
        assert "all is well" in text


class TestShow:
    def test_a_sheet_is_written(self, root, tmp_path):
        out = tmp_path / "sheet.png"
        result = run("show", "mnist", "--data-dir", root, "--out", out, "--rows", 2)
        assert result.exit_code == 0, result.output
        with Image.open(out) as drawn:
            assert result.stdout == f"{out}: {drawn.width}x{drawn.height} pixels\n"

    def test_options_reach_the_sheet(self, root, tmp_path):
        out = tmp_path / "sheet.png"
        seen = set()
        for options in (
            [],
            ["--seed", 1],
            ["--split", "train"],
            ["--rows", 1],
            ["--rotate"],
            ["--corruption", "snow"],
            ["--corruption", "snow", "--severity", 2],
            ["--corruption", "snow", "--corruption", "gaussian_noise"],
        ):
            few = ["--columns", 2, *options]
            result = run("show", "mnist", "--data-dir", root, "--out", out, *few)
            assert result.exit_code == 0, result.output
            seen.add(out.read_bytes())
        assert len(seen) == 8

    def test_published_corruptions(self, root, tmp_path):
        write_cifar10_c(root, ("snow", "fog"))
        out = tmp_path / "sheet.png"
        heights = []
        for options in ([], ["--all-corruptions"], ["--corruption", "fog"], ["--severity", 1]):
            few = ["--columns", 2, *options]
            result = run("show", "cifar10-c", "--data-dir", root, "--out", out, *few)
            assert result.exit_code == 0, result.output
            with Image.open(out) as drawn:
                heights.append(drawn.height)
        assert heights[0] == heights[1] > heights[2] > heights[3]

    def test_frost_without_overlays_says_what_to_get(self, root, tmp_path):
        out = tmp_path / "sheet.png"
        result = run("show", "mnist", "--all-corruptions", "--data-dir", root, "--out", out)
        assert result.exit_code == 1
        assert "gflowout data get frost" in plain(result.stderr)
        assert not out.exists()

    @pytest.mark.parametrize(
        ("arguments", "code", "message"),
        [
            (["eicu-demo"], 1, "has no images to show"),
            (["svhn"], 1, "gflowout data get svhn"),
            (["mnist", "--corruption", "snw"], 2, "did you mean 'snow'?"),
            (["mnist", "--severity", "3"], 2, "severity is for corruptions"),
            (["mnist", "--severity", "6"], 2, "--severity"),
            (["mnist", "--split", "val"], 2, "'train', 'test'"),
        ],
    )
    def test_errors_are_short(self, root, tmp_path, arguments, code, message):
        out = tmp_path / "sheet.png"
        result = run("show", *arguments, "--data-dir", root, "--out", out)
        assert result.exit_code == code, result.output
        assert message in plain(result.stderr)
        assert "Traceback" not in result.output
        assert not out.exists()

    def test_files_that_cannot_be_written(self, root, tmp_path):
        for out in (tmp_path / "no" / "x.png", tmp_path, tmp_path / "x.abc"):
            assert run("show", "mnist", "--data-dir", root, "--out", out).exit_code == 2
        assert not (tmp_path / "x.abc").exists()


class TestHelp:
    @pytest.mark.parametrize("command", ["list", "get", "check", "show"])
    def test_help_has_examples_and_the_data_directory(self, command):
        text = plain(run(command, "--help").stdout)
        assert f"gflowout data {command}" in text
        assert "Examples" in text
        assert "$GFLOWOUT_DATA" in text

    def test_data_is_among_the_commands(self):
        assert " data " in plain(runner.invoke(commands.app, ["--help"]).stdout)


class TestDocumentation:
    def test_table_agrees_with_the_catalogue(self):
        text = (Path(__file__).parents[2] / "docs/guides/data.md").read_text()
        rows = [
            [cell.strip(" `") for cell in line.split("|")[1:-1]]
            for line in text.splitlines()
            if line.startswith("| `") and line.count("|") == 6
        ]
        assert [row[:2] for row in rows] == [
            [entry.name, entry.folders[0]] for entry in ENTRIES.values()
        ]
        for row, entry in zip(rows, ENTRIES.values(), strict=True):
            assert row[3] == entry.licence
            assert row[4].startswith("get") == bool(entry.downloads)
            if entry.size:
                number, unit = row[2].split()
                assert float(number) == pytest.approx(
                    entry.size / {"MB": 1e6, "GB": 1e9}[unit], rel=0.06
                )


class TestRealData:
    @pytest.mark.parametrize(
        ("name", "code", "parts"),
        [
            ("mnist", 0, ["train 60,000 images 1x28x28", "test 10,000 images 1x28x28"]),
            ("notmnist", 0, ["test 10,000 images 1x28x28, 1,000 of each class"]),
            ("frost", 0, ["overlays 6 of 900x600"]),
            ("vqa-rad", 0, ["train questions 3,064", "test questions 451", "pictures 315"]),
            ("eicu-demo", 0, ["stays 2,520", "hospitals 186", "deaths in the hospital"]),
        ],
    )
    def test_what_is_in_it(self, real_data, name, code, parts):
        result = run("check", name, "--data-dir", real_data(name))
        text = plain(result.stdout)
        assert result.exit_code == code, result.output
        for part in parts:
            assert part in text

    def test_files_of_cifar_10_are_the_published_ones(self, real_data):
        found = report.check("cifar10", real_data("cifar10"))
        there = [file for file in found.files if file.size is not None]
        assert there
        assert {file.verdict for file in there} == {report.MATCHES}
        missing = [file.name for file in found.files if file.size is None]
        assert found.problems == tuple(f"{name} is missing" for name in missing)
        train = sum(10_000 for file in there if file.name.startswith("data_batch"))
        assert found.contents["train"].startswith(f"{train:,} images 3x32x32")
        assert len(there) + len(missing) == len(store.ENTRIES["cifar10"].files)
