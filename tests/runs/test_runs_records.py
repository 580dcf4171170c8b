import errno
import json
import math
import multiprocessing
import os
import re
import subprocess
import sys
import warnings
from datetime import datetime
from pathlib import Path

import pytest
import runs_work

from gflowout.runs import RecordWarning, Run, environment, frame, read, records, run_study

RUN = Run("study", "mc", "mnist", 2, {"rate": 0.5, "sizes": [3, 4]})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three runs of which one fails."""
    folder = tmp_path_factory.mktemp("records")
    runs = [Run("study", "mc", "mnist", seed, {"rate": seed / 2}) for seed in range(3)]
    run_study(runs, "runs_work:bad_seed", folder, engine="inline", retries=1, progress=False)
    return folder


def one(folder: Path) -> dict:
    run_study([RUN], "runs_work:square", folder, engine="inline", progress=False)
    (record,) = read(folder)
    return record


def test_a_record_describes_itself(tmp_path):
    record = one(tmp_path)
    assert {key: record[key] for key in ("study", "method", "data", "seed", "options")} == {
        "study": "study",
        "method": "mc",
        "data": "mnist",
        "seed": 2,
        "options": {"rate": 0.5, "sizes": [3, 4]},
    }
    assert record["id"] == RUN.id == next(tmp_path.glob("*.json")).stem
    assert (record["format"], record["status"], record["attempt"]) == (1, "done", 1)
    assert record["work"] == "runs_work:square"
    assert record["metrics"]["square"] == 4
    assert record["epochs"][0] == {"epoch": 0, "loss": 0.5}
    assert record["checksums"] == {"numbers": "sha256:0"}
    assert record["error"] is None
    assert record["threads"] == 1
    assert record["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert {"gflowout", "torch"} <= set(record["versions"])
    assert set(record["machine"]) == {"cpu", "cores", "memory_gb", "gpus", "system"}
    assert os.uname().nodename not in json.dumps(record["machine"])
    started, ended = (datetime.fromisoformat(record[key]) for key in ("started", "ended"))
    assert started.utcoffset().total_seconds() == 0
    assert abs((ended - started).total_seconds() - record["seconds"]) < 0.002
    assert Run.from_dict(record) == RUN


def test_nan_is_valid_json_and_comes_back(tmp_path):
    record = one(tmp_path)

    def refuse(name):
        raise AssertionError(name)

    text = next(tmp_path.glob("*.json")).read_text()
    raw = json.loads(text, parse_constant=refuse)
    assert raw["metrics"] == {"square": 4, "nan": None, "inf": None}
    assert math.isnan(record["metrics"]["nan"])
    assert record["metrics"]["inf"] == -math.inf
    assert record["epochs"][1]["loss"] == math.inf


def test_failures_keep_their_traceback(folder):
    failed = read(folder, "failed")
    assert [record["attempt"] for record in failed] == [1, 2]
    assert all(record["seed"] == 1 for record in failed)
    assert failed[0]["error"]["message"] == "RuntimeError: seed 1 is not good"
    assert 'raise RuntimeError("seed 1 is not good' in failed[0]["error"]["traceback"]
    assert failed[0]["metrics"] == {}
    assert {path.name for path in folder.glob("*.failed-*")} == {
        f"{failed[0]['id']}.failed-1.json",
        f"{failed[0]['id']}.failed-2.json",
    }


def test_damage_of_any_kind_is_one_warning(tmp_path):
    good = one(tmp_path)
    path = tmp_path / f"{good['id']}.json"
    text = path.read_text()
    (tmp_path / "half.json").write_text(text[: len(text) // 2])
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "changed.json").write_text(text.replace('"square": 4', '"square": 5'))
    (tmp_path / "copy.json").write_text(text)
    (tmp_path / "other.json").write_text('{"name": "something else"}')
    (tmp_path / "list.json").write_text("[1, 2]")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "notes.txt").write_text("not looked at")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert [record["id"] for record in read(tmp_path)] == [good["id"]]
    told = [str(one.message) for one in caught if one.category is RecordWarning]
    assert len(told) == 1
    for name in ("half", "empty", "changed", "copy", "other", "list", "bytes", "deep"):
        assert f"{name}.json" in told[0]
    assert "left out 8 files" in told[0]
    assert len(records.damaged(tmp_path)) == 8
    assert "half.json" in records.damaged(tmp_path)
    assert "notes.txt" not in told[0]
    assert good["id"] + ".json (" not in told[0]


def test_every_cut_and_most_flips_are_seen(tmp_path):
    one(tmp_path)
    text = next(tmp_path.glob("*.json")).read_text()
    for length in range(0, len(text) - 2, 7):
        with pytest.raises(ValueError, match=r".+"):
            records.from_text(text[:length])
    for place in (match.start() for match in re.finditer(r"\d", text)):
        other = text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :]
        with pytest.raises(ValueError, match=r".+"):
            records.from_text(other)


def test_format_of_the_future_is_refused():
    text = records.to_text({"format": 2, "id": "x"})
    with pytest.raises(ValueError, match="format 2 is not known here, only 1"):
        records.from_text(text)


def test_first_record_stays(tmp_path):
    first, second = runs_work.tallied(0), runs_work.tallied(0)
    second["metrics"]["writer"] = -1
    assert records.write(tmp_path, first)
    before = next(tmp_path.glob("*.json")).read_bytes()
    assert not records.write(tmp_path, second)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [before]


def _no_links(source, target):
    raise OSError(errno.EPERM, "no links here")


@pytest.mark.parametrize("links", [True, False])
def test_damaged_record_is_set_aside_and_written_anew(links, tmp_path, monkeypatch):
    if not links:
        monkeypatch.setattr(os, "link", _no_links)
    record = runs_work.tallied(0)
    path = tmp_path / records.filename(record)
    path.write_text("{")
    with pytest.warns(RecordWarning, match="half-written"):
        assert records.finished(tmp_path) == set()
    with pytest.warns(RecordWarning, match="written anew"):
        assert records.write(tmp_path, record)
    assert records.finished(tmp_path) == {record["id"]}
    assert (tmp_path / f"{path.name}.damaged").read_text() == "{"
    assert not records.write(tmp_path, record)
    assert len(list(tmp_path.iterdir())) == 2


def _write_all(folder, barrier, results):
    barrier.wait()
    results.put([seed for seed in range(15) if records.write(folder, runs_work.tallied(seed))])


def test_eight_processes_write_at_once(tmp_path):
    # A fork of a process with torch is safe here: the children use no torch.
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(8), context.Queue()
    writers = [
        context.Process(target=_write_all, args=(tmp_path, barrier, results)) for _ in range(8)
    ]
    for writer in writers:
        writer.start()
    written = [seed for _ in writers for seed in results.get(timeout=30)]
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert sorted(written) == list(range(15))  # each by exactly one
    found = read(tmp_path)
    assert sorted(record["seed"] for record in found) == list(range(15))
    assert len(list(tmp_path.iterdir())) == 15


def test_writer_killed_twenty_times(tmp_path):
    script = [sys.executable, runs_work.__file__, "writing", str(tmp_path / "out"), "0"]
    done = subprocess.run(script, capture_output=True, text=True, check=True)
    kills, count = map(int, done.stdout.split())
    assert kills == 20
    found = read(tmp_path / "out")  # a warning would be an error
    assert sorted(record["metrics"]["seed"] for record in found) == list(range(count))
    # On a busy machine some are killed before they write.
    assert len({record["metrics"]["writer"] for record in found}) > 10


def test_old_leftovers_are_cleaned(tmp_path):
    old, new = tmp_path / ".half-old", tmp_path / ".half-new"
    old.touch()
    new.touch()
    os.utime(old, (0, 0))
    records.clean(tmp_path)
    assert list(tmp_path.iterdir()) == [new]


def test_read_errors(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such folder"):
        read(tmp_path / "none")
    with pytest.raises(ValueError, match="status must be one of 'done', 'failed', got 'ok'"):
        read(tmp_path, "ok")


def test_commit_of_the_work(tmp_path):
    def git(*command):
        setup = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        done = subprocess.run(
            ["git", "-C", str(tmp_path), *setup, *command], capture_output=True, text=True
        )
        return done.stdout.strip()

    file = tmp_path / "work.py"
    file.write_text("a = 1\n")
    assert environment.commit(file) is None or "id" in environment.commit(file)
    git("init")
    (tmp_path / ".gitignore").write_text("installed\n")
    git("add", "work.py", ".gitignore")
    git("commit", "-m", "first")
    head = git("rev-parse", "HEAD")
    assert environment.commit(file) == {"id": head, "dirty": False}
    (tmp_path / "results.json").touch()  # a new file is no change
    assert environment.commit(file) == {"id": head, "dirty": False}
    file.write_text("a = 2\n")
    assert environment.commit(file) == {"id": head, "dirty": True}
    installed = tmp_path / "installed" / "package.py"
    installed.parent.mkdir()
    installed.touch()
    assert environment.commit(installed) is None
    assert environment.commit(None) is None


def test_the_record_on_the_page_is_a_real_one():
    page = (Path(__file__).parents[2] / "docs/guides/scale.md").read_text()
    (text,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    record = records.from_text(text)
    assert set(record) == set(runs_work.tallied(0))


def test_frame_has_a_column_per_figure(folder):
    pytest.importorskip("pandas")
    table = frame(folder)
    done = table[table.status == "done"]
    assert sorted(done["metrics.seed"]) == [0, 2]
    assert sorted(done["options.rate"]) == [0.0, 1.0]
    assert set(table[table.status == "failed"]["error.kind"]) == {"exception"}
    assert len(frame(folder, "done")) == 2


def test_one_line_with_pandas(folder):
    pd = pytest.importorskip("pandas")
    table = pd.json_normalize([json.loads(path.read_text()) for path in folder.glob("*.json")])
    assert table.groupby("status")["id"].count().to_dict() == {"done": 2, "failed": 2}


def test_one_line_with_duckdb(folder):
    duckdb = pytest.importorskip("duckdb")
    query = f"""
        select method, avg(metrics.seed), count(*) from '{folder}/*.json'
        where status = 'done' group by method
    """
    assert duckdb.sql(query).fetchall() == [("mc", 1.0, 2)]
    wide = f"""
        select error.message from read_json('{folder}/*.json', maximum_sample_files = -1)
        where status = 'failed'
    """
    assert duckdb.sql(wide).fetchall() == [("RuntimeError: seed 1 is not good",)] * 2
