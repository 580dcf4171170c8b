"""Downloads against a real server on this machine that can be told to misbehave."""

from __future__ import annotations

import hashlib
import io
import json
import multiprocessing
import os
import re
import shutil
import signal
import socket
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from download_server import Server, serve

from gflowout.data import download, store, transfer
from gflowout.data.errors import DataError, MissingDataError
from gflowout.data.store import Download, Entry, File
from gflowout.data.transfer import unpack

CONTENT = bytes(range(256)) * 1200  # about five pieces


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(transfer, "PAUSE", 0.01)
    with serve() as state:
        yield state


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


def md5(content: bytes) -> str:
    return "md5:" + hashlib.md5(content, usedforsecurity=False).hexdigest()


def declare(monkeypatch: pytest.MonkeyPatch, *downloads: Download, **fields: object) -> Entry:
    """A data set called toy."""
    files = tuple(File(each.filename, each.checksum) for each in downloads)
    plain = {"files": files, "downloads": downloads, "size": 1000, **fields}
    toy = Entry("toy", "a toy", "images", ("toy",), licence="none", home="http://home",
                citation="us", **plain)  # fmt: skip
    monkeypatch.setitem(store.ENTRIES, "toy", toy)
    return toy


@pytest.fixture
def toy(server: Server, monkeypatch: pytest.MonkeyPatch) -> Entry:
    url = server.add("a.bin", CONTENT)
    return declare(monkeypatch, Download(url, md5(CONTENT)))


def get(root: Path, **options: object) -> Path:
    return download.get("toy", root, progress=False, **options)


def left(root: Path) -> set[str]:
    """Every file in the data directory but the locks, partial ones by their ending."""
    found = (path for path in root.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {re.sub(r"^\.partial/toy/\w{12}-", "partial ", str(p.relative_to(root))) for p in found}


class TestWhole:
    def test_a_file_arrives_as_it_is_and_once(self, server, root, toy):
        folder = get(root)
        assert folder == root / "toy"
        assert (folder / "a.bin").read_bytes() == CONTENT
        assert left(root) == {"toy/a.bin"}
        assert get(root) == folder
        assert len(server.asked) == 1

    def test_directory_is_made_if_only_its_last_folder_is_missing(self, root, toy):
        assert get(root / "new") == root / "new" / "toy"
        with pytest.raises(MissingDataError, match="must name a directory that exists"):
            get(root / "not" / "there")

    def test_directory_of_the_environment_is_used(self, root, toy, monkeypatch):
        monkeypatch.setenv(store.VARIABLE, str(root))
        assert download.get("toy", progress=False) == root / "toy"

    def test_files_in_another_folder_of_the_data_set_are_completed_there(
        self, server, root, monkeypatch
    ):
        one, two = (Download(server.add(name, CONTENT + name.encode()), "") for name in "ab")
        one, two = (replace(d, checksum=md5(CONTENT + d.filename.encode())) for d in (one, two))
        declare(monkeypatch, one, two)
        toy = replace(store.ENTRIES["toy"], folders=("toy", "Toy/raw"))
        monkeypatch.setitem(store.ENTRIES, "toy", toy)
        (root / "Toy" / "raw").mkdir(parents=True)
        (root / "Toy" / "raw" / "a").write_bytes(CONTENT + b"a")
        assert get(root) == root / "Toy" / "raw"
        assert [name for name, *_ in server.asked] == ["b"]
        assert left(root) == {"Toy/raw/a", "Toy/raw/b"}

    def test_one_of_several_missing_leaves_the_folder_alone(self, server, root, monkeypatch):
        first = Download(server.add("a.bin", CONTENT), md5(CONTENT))
        declare(monkeypatch, first, Download(f"{server.url}/gone.bin", md5(b"")))
        with pytest.raises(DataError, match=r"gone\.bin.*404"):
            get(root)
        assert left(root) == {"partial a.bin"}
        server.add("gone.bin", b"")
        get(root)
        assert left(root) == {"toy/a.bin", "toy/gone.bin"}
        assert server.sent["a.bin"] == len(CONTENT)

    def test_force_fetches_again(self, server, root, toy):
        get(root)
        get(root, force=True)
        assert server.sent["a.bin"] == 2 * len(CONTENT)
        assert left(root) == {"toy/a.bin"}

    def test_a_file_that_differs_is_replaced_by_force_only(self, server, root, toy):
        (root / "toy").mkdir()
        (root / "toy" / "a.bin").write_bytes(b"my own")
        with pytest.raises(DataError, match=r"published file has.*--force"):
            get(root)
        assert (root / "toy" / "a.bin").read_bytes() == b"my own"
        get(root, force=True)
        assert (root / "toy" / "a.bin").read_bytes() == CONTENT

    def test_force_keeps_the_spelling_that_is_there(self, server, root, toy):
        (root / "toy").mkdir()
        (root / "toy" / "A.bin").write_bytes(b"old")
        get(root, force=True)
        assert left(root) == {"toy/A.bin"}
        assert (root / "toy" / "A.bin").read_bytes() == CONTENT

    def test_progress_goes_to_standard_error(self, root, toy, capsys):
        download.get("toy", root, progress=True)
        out, err = capsys.readouterr()
        assert not out
        assert "a.bin" in err

    def test_quiet_says_nothing(self, root, toy, capsys):
        get(root)
        assert capsys.readouterr() == ("", "")


class TestResume:
    def test_a_cut_connection_goes_on_where_it_stopped(self, server, root, toy):
        server.cut = [100_000, 100_000]
        get(root)
        assert (root / "toy" / "a.bin").read_bytes() == CONTENT
        assert server.sent["a.bin"] == len(CONTENT)
        starts = [int(wanted[6:-1]) for _, wanted, _ in server.asked[1:]]
        assert starts == [100_000, 200_000]
        assert {condition for *_, condition in server.asked[1:]} == {'"one"'}

    def test_the_next_run_goes_on_where_the_last_one_gave_up(self, server, root, toy):
        server.cut = [70_000] + [0] * 10
        with pytest.raises(DataError, match=r"broke 4 times.*70,000 bytes are kept.*again"):
            get(root)
        assert left(root) == {"partial a.bin.part", "partial a.bin.part.json"}
        assert not (root / "toy").exists()
        server.cut = []
        get(root)
        assert server.sent["a.bin"] == len(CONTENT)
        assert left(root) == {"toy/a.bin"}

    def test_a_file_that_changed_starts_anew(self, server, root, toy, monkeypatch):
        server.cut = [70_000] + [0] * 3
        with pytest.raises(DataError):
            get(root)
        changed = CONTENT[::-1]
        server.add("a.bin", changed)
        server.tags["a.bin"] = '"two"'
        # The catalogue still wants the first version, whose partial file is kept.
        with pytest.raises(DataError, match="not the published file"):
            get(root)
        assert server.asked[-1] == ("a.bin", "bytes=70000-", '"one"')
        assert server.sent["a.bin"] == 70_000 + len(changed)
        assert left(root) == set()

    @pytest.mark.parametrize("size", [len(CONTENT) + 5, 60_000])
    def test_a_changed_file_without_a_tag_starts_anew(self, server, root, toy, size):
        server.tags.clear()
        del server.tags, server.cut
        server.tags, server.cut = {}, [70_000, 0, 0, 0]
        with pytest.raises(DataError):
            get(root)
        server.files["a.bin"] = bytes(size)
        with pytest.raises(DataError, match="not the published file"):
            get(root)
        assert server.asked[-1][1] is None

    def test_a_server_without_ranges_starts_anew(self, server, root, toy):
        server.ranges, server.cut = False, [100_000]
        get(root)
        assert (root / "toy" / "a.bin").read_bytes() == CONTENT
        assert server.sent["a.bin"] == 100_000 + len(CONTENT)

    def test_a_part_that_was_not_asked_for_is_not_used(self, server, root, toy):
        server.cut, server.shift = [100_000], [7]
        get(root)
        assert (root / "toy" / "a.bin").read_bytes() == CONTENT
        assert [wanted for _, wanted, _ in server.asked] == [None, "bytes=100000-", None]

    def test_a_server_that_always_cuts_is_given_up(self, server, root, toy):
        server.ranges, server.cut = False, [100_000] * 50
        with pytest.raises(DataError, match="broke 4 times"):
            get(root)
        assert len(server.asked) == transfer.TRIES

    def test_slow_progress_is_no_failure(self, server, root, toy):
        server.cut = [40_000] * 7
        get(root)
        assert len(server.asked) == 8 > transfer.TRIES

    def test_a_complete_partial_file_needs_no_request(self, server, root, toy):
        server.cut = [len(CONTENT)]
        get(root)
        shutil.rmtree(root / "toy")
        (root / "part").write_bytes(CONTENT)
        notes = {"url": toy.downloads[0].url, "validator": None, "total": len(CONTENT)}
        (root / "part.json").write_text(json.dumps(notes))
        asked = len(server.asked)
        whole, part = root / "whole", root / "part"
        transfer.resume(toy.downloads[0].url, whole, part, lambda done, total: None)
        assert (root / "whole").read_bytes() == CONTENT
        assert len(server.asked) == asked

    def test_a_busy_server_is_asked_again(self, server, root, toy):
        server.status = [503, 429]
        get(root)
        assert len(server.asked) == 3


class TestDamage:
    def test_wrong_content_leaves_nothing(self, server, root, toy):
        server.files["a.bin"] = wrong = CONTENT[:-1] + b"x"
        with pytest.raises(DataError) as caught:
            get(root)
        assert left(root) == set()
        assert not (root / ".partial" / "toy").exists()
        assert not (root / "toy").exists()
        message = str(caught.value)
        for part in (server.url, md5(CONTENT), md5(wrong)[4:], "deleted", "http://home"):
            assert part in message

    def test_a_damaged_partial_file_does_not_outlive_one_run(self, server, root, toy):
        server.cut = [70_000] + [0] * 3
        with pytest.raises(DataError):
            get(root)
        (part,) = root.rglob("*.part")
        part.write_bytes(bytes(70_000))
        server.cut = []
        with pytest.raises(DataError, match="not the published file"):
            get(root)
        get(root)
        assert (root / "toy" / "a.bin").read_bytes() == CONTENT

    @pytest.mark.parametrize("status", [404, 403])
    def test_a_refusal_is_final_and_says_what_to_do(self, server, root, toy, status):
        server.status = [status] * 9
        with pytest.raises(DataError, match=rf"a\.bin: the server answered {status}.*put it into"):
            get(root)
        assert len(server.asked) == 1
        assert left(root) == set()

    def test_no_network_says_which_address_and_what_to_do(self, root, monkeypatch, server):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        declare(monkeypatch, Download(f"http://127.0.0.1:{port}/a.bin", md5(b"")))
        with pytest.raises(DataError) as caught:
            get(root)
        message = str(caught.value)
        assert f"127.0.0.1:{port}/a.bin: no connection" in message
        assert "refused" in message
        assert f"put it into {root / 'toy'}" in message
        assert "object at" not in message
        assert len(message) < 400

    def test_a_disk_too_small_is_found_before(self, server, root, toy, monkeypatch):
        monkeypatch.setitem(store.ENTRIES, "toy", replace(toy, size=10**18))
        with pytest.raises(DataError, match=r"needs about 1e\+09 GB and .* are free.*--data-dir"):
            get(root)
        assert server.asked == []

    def test_a_folder_that_cannot_be_written_is_explained(self, toy, tmp_path):
        file = tmp_path / "file"
        file.write_text("")
        with pytest.raises(DataError, match="file"):
            get(file)

    def test_what_cannot_be_downloaded_says_how_to_get_it(self, root):
        with pytest.raises(MissingDataError, match=r"eicu: cannot be downloaded.*training.*signed"):
            download.get("eicu", root)

    def test_what_a_package_brings_needs_no_download(self, root):
        pytest.importorskip("easy_vqa")
        assert (download.get("easy-vqa", root) / "answers.txt").is_file()


def tar_of(files: dict[str, bytes], mode: str = "w:gz") -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def zip_of(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in files.items():
            packed.writestr(name, content)
    return stream.getvalue()


class TestArchives:
    inside = {"top/a.bin": b"first", "top/deep/b.bin": CONTENT}

    def declare(self, server, monkeypatch, packed: bytes, name="toy.tar.gz", **fields):
        offered = Download(server.add(name, packed), md5(packed), unpack=True, strip=1)
        files = tuple(
            File(path.removeprefix("top/"), md5(content)) for path, content in self.inside.items()
        )
        return declare(monkeypatch, offered, **{"files": files, **fields})

    @pytest.mark.parametrize(
        ("pack", "name"),
        [
            (tar_of, "toy.tar.gz"),
            (lambda files: tar_of(files, "w"), "toy.tar"),
            (zip_of, "toy.zip"),
        ],
    )
    def test_content_comes_without_leading_folders_and_archive(
        self, server, root, monkeypatch, pack, name
    ):
        self.declare(server, monkeypatch, pack(self.inside), name)
        get(root)
        assert (root / "toy" / "deep" / "b.bin").read_bytes() == CONTENT
        assert left(root) == {"toy/a.bin", "toy/deep/b.bin"}
        get(root)
        assert len(server.asked) == 1

    def test_a_missing_file_brings_the_archive_back_and_keeps_others(
        self, server, root, monkeypatch
    ):
        self.declare(server, monkeypatch, tar_of(self.inside))
        (root / "toy").mkdir()
        (root / "toy" / "a.bin").write_bytes(b"first")
        (root / "toy" / "mine.txt").write_text("notes")
        get(root)
        assert left(root) == {"toy/a.bin", "toy/deep/b.bin", "toy/mine.txt"}

    def test_several_archives_share_a_folder(self, server, root, monkeypatch):
        packed = {name: zip_of({name: name.encode()}) for name in ("q.json", "a.json")}
        declare(
            monkeypatch,
            *(
                Download(server.add(f"{name}.zip", content), md5(content), unpack=True)
                for name, content in packed.items()
            ),
            files=(File("q.json"), File("a.json")),
        )
        get(root)
        assert left(root) == {"toy/q.json", "toy/a.json"}

    def test_nothing_is_unpacked_before_it_is_verified(self, server, root, monkeypatch):
        self.declare(server, monkeypatch, tar_of(self.inside))
        server.files["toy.tar.gz"] = tar_of({"top/a.bin": b"evil"})
        monkeypatch.setattr(download, "unpack", lambda *_: pytest.fail("unpacked"))
        with pytest.raises(DataError, match="not the published file"):
            get(root)
        assert left(root) == set()

    def test_the_folder_appears_at_once(self, server, root, monkeypatch):
        self.declare(server, monkeypatch, tar_of(self.inside))
        seen = []

        def watched(archive: Path, folder: Path, strip: int) -> None:
            unpack(archive, folder, strip)
            seen.append((root / "toy").exists())
            raise KeyboardInterrupt

        monkeypatch.setattr(download, "unpack", watched)
        with pytest.raises(KeyboardInterrupt, match=r"kept.*run it again"):
            get(root)
        assert seen == [False]
        assert left(root) == {"partial toy.tar.gz"}
        monkeypatch.undo()
        assert not (root / "toy").exists()

    def test_leftovers_of_a_killed_process_are_not_taken_in(self, server, root, monkeypatch):
        self.declare(server, monkeypatch, tar_of(self.inside))
        (root / ".toy.unpacking").mkdir()
        (root / ".toy.unpacking" / "half").write_text("")
        get(root)
        assert left(root) == {"toy/a.bin", "toy/deep/b.bin"}

    @pytest.mark.parametrize("name", ["top/../../evil", "/tmp/evil", "../evil", "C:/evil"])
    @pytest.mark.parametrize("pack", [tar_of, zip_of])
    def test_paths_that_lead_out_are_refused(self, server, root, monkeypatch, pack, name):
        packed = pack({"top/a.bin": b"first", name: b"evil"})
        self.declare(server, monkeypatch, packed, "toy.any")
        with pytest.raises(DataError, match=r"refused, '.*evil' leads out"):
            get(root)
        assert left(root) == set()
        assert not list(root.parent.rglob("evil"))

    @pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
    def test_links_and_devices_are_refused(self, root, kind):
        with tarfile.open(root / "x.tar", "w") as tar:
            member = tarfile.TarInfo("top/link")
            member.type, member.linkname = kind, "/etc/passwd"
            tar.addfile(member)
        with pytest.raises(DataError, match="refused, 'top/link' is a link or a device"):
            unpack(root / "x.tar", root / "out")
        assert not list((root / "out").iterdir())

    def test_a_zip_file_too_large_to_unpack_is_found_before(self, root, monkeypatch):
        (root / "x.zip").write_bytes(zip_of({"a": bytes(10_000)}))
        usage = shutil.disk_usage(root)._replace(free=9_999)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
        with pytest.raises(DataError, match=r"needs 10,000 bytes, 9,999 are free"):
            unpack(root / "x.zip", root / "out")
        assert not list((root / "out").iterdir())

    @pytest.mark.parametrize("content", [b"", b"no archive", tar_of({"a": CONTENT})[:-300]])
    def test_damaged_archives_are_explained(self, root, content):
        (root / "x.tar.gz").write_bytes(content)
        with pytest.raises(DataError, match="not an archive that can be unpacked"):
            unpack(root / "x.tar.gz", root / "out")


class TestSums:
    def declare(self, server, monkeypatch, listed: bytes):
        url = server.add("v1/tables/a.bin", CONTENT)
        sums = server.add("v1/SUMS.txt", listed)
        return declare(monkeypatch, Download(url, f"sums:{sums}"), files=(File("a.bin"),))

    @pytest.mark.parametrize("form", ["{}  tables/a.bin", "{} *./tables/a.bin", "{} tables/a.bin"])
    def test_published_list_is_fetched_and_believed(self, server, root, monkeypatch, form):
        sha = hashlib.sha256(CONTENT).hexdigest()
        listed = f"{'0' * 64}  other/a.bin\n{form.format(sha)}\n".encode()
        toy = self.declare(server, monkeypatch, listed)
        get(root)
        assert (root / toy.folders[0] / "a.bin").read_bytes() == CONTENT
        server.files["v1/tables/a.bin"] = b"changed"
        with pytest.raises(DataError, match="not the published file"):
            get(root, force=True)
        assert (root / "toy" / "a.bin").read_bytes() == CONTENT

    def test_a_list_without_the_file_is_an_error(self, server, root, monkeypatch):
        self.declare(server, monkeypatch, f"{'0' * 64}  a.bin".encode())
        with pytest.raises(DataError, match=r"SUMS\.txt: does not list tables/a\.bin"):
            get(root)
        assert server.sent["v1/tables/a.bin"] == 0

    def test_no_list_is_an_error(self, server, root, monkeypatch):
        self.declare(server, monkeypatch, b"")
        del server.files["v1/SUMS.txt"]
        with pytest.raises(DataError, match=r"SUMS\.txt: the server answered 404"):
            get(root)

    def test_eicu_demo_is_listed_under_its_own_names(self):
        for offered in store.ENTRIES["eicu-demo"].downloads:
            base = offered.checksum.removeprefix("sums:").rpartition("/")[0]
            assert offered.url == f"{base}/{offered.filename}"


def _getting(root: Path, said: multiprocessing.SimpleQueue[str]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        said.put(str(get(root)))
    except BaseException as error:
        said.put(str(error))


class TestTogether:
    def start(self, root: Path, processes: int):
        # Forked, so that the toy of the catalogue is there and torch is not imported again.
        context = multiprocessing.get_context("fork")
        said = context.SimpleQueue()
        started = [context.Process(target=_getting, args=(root, said)) for _ in range(processes)]
        for process in started:
            process.start()
        return started, said

    def test_processes_fetch_once(self, server, root, toy):
        server.delay = 0.02
        started, said = self.start(root, 3)
        for process in started:
            process.join(60)
            assert process.exitcode == 0
        assert [said.get() for _ in started] == [str(root / "toy")] * 3
        assert server.sent["a.bin"] == len(CONTENT)
        assert left(root) == {"toy/a.bin"}

    def test_threads_fetch_once(self, server, root, toy):
        server.delay = 0.01
        found: list[Path] = []
        threads = [threading.Thread(target=lambda: found.append(get(root))) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert found == [root / "toy"] * 3
        assert server.sent["a.bin"] == len(CONTENT)

    @pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
    def test_an_interrupted_one_leaves_only_what_can_be_resumed(self, server, root, toy, ending):
        server.delay = 0.1
        (process,), said = self.start(root, 1)
        until = time.monotonic() + 30
        while server.sent["a.bin"] < 140_000 and time.monotonic() < until:
            time.sleep(0.01)
        os.kill(process.pid, ending)
        process.join(60)
        assert not (root / "toy").exists()
        if ending == signal.SIGINT:
            message = said.get()
            assert str(root / ".partial") in message
            assert "run it again to go on" in message
            assert left(root) == {"partial a.bin.part", "partial a.bin.part.json"}
        (part,) = root.rglob("*.part")
        kept = part.stat().st_size
        assert 0 < kept < len(CONTENT)
        server.delay = 0
        get(root)
        assert server.asked[-1][1] == f"bytes={kept}-"
        assert (root / "toy" / "a.bin").read_bytes() == CONTENT
        assert left(root) == {"toy/a.bin"}


class TestCatalogue:
    def test_every_download_has_a_checksum_and_a_name(self):
        offered = [each for entry in store.ENTRIES.values() for each in entry.downloads]
        assert offered
        for each in offered:
            assert re.fullmatch(
                r"md5:[0-9a-f]{32}|sha256:[0-9a-f]{64}|sums:https://\S+", each.checksum
            )
            assert each.filename
            assert "/" not in each.filename

    def test_readable_sizes(self):
        cases = {999: "999 B", 1000: "1 kB", 2_918_471_680: "2.92 GB"}
        assert {size: download.readable(size) for size in cases} == cases
