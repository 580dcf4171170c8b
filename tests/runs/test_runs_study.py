import io
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import runs_work

from gflowout.runs import BusyError, Inline, Pool, Run, engine, locks, read, records, run_study
from gflowout.runs.engines import Ended, Progress, Started
from gflowout.runs.study import SCRATCH, Live, Tally
from gflowout.runs.work import Task, current_name, resolve

FORK = {"inline": lambda: Inline(), "pool": lambda: Pool(2, start="fork")}


def runs(seeds=3, **options):
    return [Run("toy", "mc", "none", seed, options) for seed in range(seeds)]


def quietly(which, work, folder, **options):
    options = {"engine": Pool(2, start="fork"), "progress": False, **options}
    return run_study(which, f"runs_work:{work}", folder, **options)


@pytest.mark.parametrize("kind", FORK)
def test_only_what_is_missing_is_done(kind, tmp_path):
    first = quietly(runs(2), "square", tmp_path, engine=FORK[kind]())
    assert (first.total, first.skipped, first.done, first.failed) == (2, 0, 2, {})
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.json")}
    second = quietly(runs(4), "square", tmp_path, engine=FORK[kind]())
    assert (second.total, second.skipped, second.done) == (4, 2, 2)
    after = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.json")}
    assert {name: after[name] for name in before} == before
    assert sorted(record["metrics"]["square"] for record in read(tmp_path)) == [0, 1, 4, 9]
    third = quietly(runs(4), "square", tmp_path, engine=FORK[kind]())
    assert (third.skipped, third.done, third.exit_code) == (4, 0, 0)


@pytest.mark.parametrize("kind", FORK)
def test_a_failing_run_stops_no_other_and_is_tried_again(kind, tmp_path):
    summary = quietly(runs(4), "bad_seed", tmp_path, engine=FORK[kind](), retries=2)
    bad = runs(2)[1].id
    assert (summary.done, summary.failed) == (3, {bad: "RuntimeError: seed 1 is not good"})
    assert summary.exit_code == 1
    assert f"failed: {bad}: RuntimeError: seed 1 is not good" in str(summary)
    failed = read(tmp_path, "failed")
    assert [record["attempt"] for record in failed] == [1, 2, 3]
    assert "line" in failed[0]["error"]["traceback"]
    if kind == "pool":
        assert "what a worker prints" in failed[0]["error"]["output"]
    # The next start tries it again, with the next number.
    quietly(runs(4), "bad_seed", tmp_path, engine=FORK[kind](), retries=0)
    assert [record["attempt"] for record in read(tmp_path, "failed")] == [1, 2, 3, 4]


@pytest.mark.parametrize("kind", FORK)
def test_retries_end_in_success(kind, tmp_path):
    summary = quietly(runs(2), "fails_twice", tmp_path, engine=FORK[kind](), retries=2)
    assert (summary.done, summary.failed) == (2, {})
    assert [record["metrics"]["attempt"] for record in read(tmp_path, "done")] == [3, 3]
    assert len(read(tmp_path, "failed")) == 4


@pytest.mark.parametrize("kind", FORK)
def test_bad_results_are_failures(kind, tmp_path):
    summary = quietly(runs(1), "nothing", tmp_path, engine=FORK[kind](), retries=0)
    assert "must return a dict, got None" in next(iter(summary.failed.values()))


@pytest.mark.parametrize("kind", FORK)
def test_time_limit(kind, tmp_path):
    which = [*runs(1, seconds=30), *runs(1, seconds=0.01)]
    clock = time.monotonic()
    summary = quietly(which, "sleep", tmp_path, engine=FORK[kind](), retries=0, time_limit=1.5)
    assert time.monotonic() - clock < 25
    assert (summary.done, list(summary.failed)) == (1, [which[0].id])
    (record,) = read(tmp_path, "failed")
    assert record["error"]["kind"] == "time limit"
    assert "after 1.5 seconds" in record["error"]["message"]
    assert 1.4 < record["seconds"] < 25


def test_processes_that_die_are_tried_again(tmp_path):
    which = [Run("toy", "m", "d", 0, {"way": way}) for way in ("kill", "abort", "exit", "not")]
    summary = quietly(which, "die_once", tmp_path, retries=1)
    assert (summary.done, summary.failed) == (4, {})
    messages = {r["options"]["way"]: r["error"]["message"] for r in read(tmp_path, "failed")}
    assert messages == {
        "kill": "the process was killed by SIGKILL",
        "abort": "the process was killed by SIGABRT",
        "exit": "the process ended with exit code 3, without a result",
    }
    (abort,) = (r for r in read(tmp_path, "failed") if r["options"]["way"] == "abort")
    assert "in die_once" in abort["error"]["output"]  # faulthandler's traceback
    assert abort["machine"]["cores"] >= 1


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_memory_limit(tmp_path):
    summary = quietly(runs(1), "hog", tmp_path, retries=0, memory_limit=0.8)
    assert "the limit is 0.8" in next(iter(summary.failed.values()))
    assert read(tmp_path)[0]["error"]["kind"] == "memory limit"


def test_a_fresh_interpreter_needs_no_main_guard(tmp_path):
    """Scripts start studies at their top level; workers must not run them again.

    Nor are the optional packages needed.
    """
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys; sys.path.append({str(Path(runs_work.__file__).parent)!r})\n"
        "sys.modules.update(dict.fromkeys(['pandas', 'ray', 'rich']))  # not there\n"
        "from gflowout.runs import Pool, Run, run_study\n"
        "runs = [Run('toy', 'm', 'd', 0, {'way': 'kill'})]\n"
        "summary = run_study(runs, 'runs_work:die_once', 'out', engine=Pool(2))\n"
        "print(summary.done, summary.exit_code)\n"
    )
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "1 0\n"
    assert "attempt 1 failed" in done.stderr
    assert "killed by SIGKILL; will be tried again" in done.stderr
    good = read(tmp_path / "out", "done")
    assert [(record["metrics"]["way"], record["threads"]) for record in good] == [("kill", 1)]


def test_study_killed_twenty_times(tmp_path):
    calm = tmp_path / "calm"
    quietly(runs_work.chains(), "steps", calm)
    script = [sys.executable, runs_work.__file__, "study", str(tmp_path / "out"), "1"]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    kills, count = map(int, done.stdout.split())
    assert kills == 20
    found, wanted = read(tmp_path / "out"), read(calm)  # a warning would be an error
    assert count == len(found) == 24
    for one, other in zip(found, wanted, strict=True):
        for key in ("id", "status", "metrics", "epochs"):
            assert one[key] == other[key]
    last = found[0]["id"]
    for _ in range(8):
        last = runs_work.hashlib.sha256(last.encode()).hexdigest()
    assert found[0]["metrics"]["end"] == last
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {name for name in names if not name.startswith(".")} == {
        f"{run.id}.json" for run in runs_work.chains()
    }
    assert not list((tmp_path / "out" / SCRATCH).iterdir())


def test_folder_of_a_run_survives_attempts_and_goes_with_success(tmp_path):
    which = [Run("toy", "m", "d", 0, {"way": "kill"})]
    quietly(which, "die_once", tmp_path, retries=0)
    folder = tmp_path / SCRATCH / which[0].id
    assert (folder / "died").exists()
    summary = quietly(which, "die_once", tmp_path, keep_scratch=True)
    assert summary.done == 1
    assert (folder / "died").exists()
    quietly(which, "die_once", tmp_path)
    assert not folder.exists()
    elsewhere = tmp_path / "elsewhere"
    quietly(runs(1), "square", tmp_path, scratch=elsewhere, keep_scratch=True)
    assert (elsewhere / runs(1)[0].id / "output.log").exists()


def wait_for(true, seconds=20.0):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def driver(tmp_path):
    """A process that runs a study of two runs which never end; each with a child of its own."""
    code = (
        "import sys; sys.path.append(sys.argv[2])\n"
        "from gflowout.runs import *\n"
        "runs = grid('s', methods=['m'], data=['d'], seeds=range(3))\n"
        "run_study(runs, 'runs_work:orphan', sys.argv[1], engine=Pool(2, start='fork'))\n"
    )
    tests = str(Path(runs_work.__file__).parent)
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path), tests], stderr=subprocess.PIPE, text=True
    )
    wait_for(lambda: len(list(tmp_path.glob(".scratch/*/processes"))) == 2, 60)
    yield process
    process.kill()
    process.communicate()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_its_driver(how, driver, tmp_path):
    processes = runs_work.processes(tmp_path)
    assert len(processes) == 4
    assert all(runs_work.alive(process) for process in processes)
    # A second driver is told, and changes nothing.
    with pytest.raises(BusyError, match=f"another study is at work .*process {driver.pid}"):
        quietly(runs(1), "square", tmp_path)
    driver.send_signal(how)
    _, told = driver.communicate(timeout=90)
    wait_for(lambda: not any(runs_work.alive(process) for process in processes))
    if how == signal.SIGINT:
        assert "stopped: 0 of 3 done, 3 left" in told
        assert "start the same study again" in told
        assert "KeyboardInterrupt" in told
    assert driver.returncode == -how
    assert not [path for path in tmp_path.iterdir() if not path.name.startswith(".")]
    # The lock went with its owner.
    assert quietly(runs(1), "square", tmp_path).done == 1


def test_a_record_written_in_the_moment_of_the_interrupt_counts(monkeypatch, tmp_path, capsys):
    write = records.write

    def interrupted(folder, record):
        write(folder, record)
        if record["seed"] == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(records, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        quietly(runs(3), "square", tmp_path, engine="inline")
    assert "stopped: 2 of 3 done, 1 left. Records are in" in capsys.readouterr().err


def test_lock_is_free_after_use(tmp_path):
    with locks.hold(tmp_path / "lock"), pytest.raises(BusyError):  # noqa: SIM117
        with locks.hold(tmp_path / "lock"):
            pass
    with locks.hold(tmp_path / "lock"):
        pass


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"work": "runs_work.square"}, ValueError, "work must name a function as"),
        ({"work": "runs_work:sqare"}, ValueError, "no such name .* did you mean 'square'"),
        ({"work": "runs_wrk:square"}, ValueError, "no module runs_wrk"),
        ({"work": "runs_work:hashlib"}, ValueError, "which is a module"),
        ({"engine": "pol"}, ValueError, "engine must be one of .* did you mean 'pool'"),
        ({"engine": 3}, TypeError, "engine must be a name or an Engine, got 3"),
        ({"retries": -1}, ValueError, "retries must be an integer >= 0, got -1"),
        ({"time_limit": 0}, ValueError, "time_limit must be a number in"),
        ({"runs": ["a"]}, TypeError, "runs must be a list of Run, got 'a'"),
        ({"engine": "inline", "memory_limit": 1}, ValueError, "memory_limit must be None"),
    ],
)
def test_errors_at_the_door(change, error, message, tmp_path):
    arguments = {"runs": runs(1), "work": "runs_work:square", "folder": tmp_path, **change}
    with pytest.raises(error, match=message):
        run_study(progress=False, **arguments)


@pytest.mark.parametrize(
    ("options", "message"), [({"jobs": 0}, "jobs must be"), ({"start": "spwn"}, "start must be")]
)
def test_pool_errors(options, message):
    with pytest.raises(ValueError, match=message):
        engine("pool", **options)


def test_a_run_named_twice_is_done_once(tmp_path):
    assert quietly([*runs(2), *runs(2)], "square", tmp_path, engine="inline").total == 2


def test_errors_inside_a_module_pass_through(tmp_path, monkeypatch):
    (tmp_path / "broken_work.py").write_text("import no_such_module_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_module_at_all"):
        resolve("broken_work:work")


def test_earlier_names_of_work_functions():
    assert current_name("gflowout.experiments.cost:work") == "gflowout.studies.cost:work"
    assert resolve("gflowout.experiments.cost:work") is resolve("gflowout.studies.cost:work")


def ended(run, seconds, error=None, again=False):
    record = {"seconds": seconds, "error": error and {"message": error}}
    return Ended(Task("w:f", run, Path()), record, again)


def test_tally_estimates_from_what_has_ended():
    a, b, c = runs(3)
    tally = Tally(total=5, skipped=1)
    assert tally.remaining() is None
    for run in (a, b):
        tally.hear(Started(Task("w:f", run, Path())))
    tally.hear(ended(a, 100.0))
    tally.hear(Started(Task("w:f", c, Path())))
    # Three are left, of 100 s each; two run at once and have just begun.
    assert tally.remaining() == pytest.approx(150, abs=1)
    tally.hear(ended(b, 50.0, "Error: x", again=True))
    tally.hear(ended(b, 50.0, "Error: x"))
    tally.hear(ended(c, 100.0))
    assert (tally.done, tally.left, tally.retried, tally.failed) == (2, 1, 1, {b.id: "Error: x"})
    assert tally.line().startswith(
        "3 of 5 done, 1 of them before, 1 tried again, 1 failed, 1 left, about 1:15 to go"
    )


def test_no_time_to_go_is_told_when_the_estimate_is_used_up():
    a, b, c = runs(3)
    tally = Tally(total=3, skipped=0)
    for run in (a, b):
        tally.hear(Started(Task("w:f", run, Path())))
    tally.hear(ended(a, 100.0))
    tally.rows[b.id].since -= 1000  # ten times as long as the other
    assert tally.line().startswith("1 of 3 done, 2 left, about 1:40 to go")
    assert tally.line(ended=True) == "1 of 3 done, 2 left"
    tally.hear(Started(Task("w:f", c, Path())))
    tally.rows[c.id].since -= 1000
    assert tally.remaining() is None
    assert tally.line() == "1 of 3 done, 2 left"
    quick = Tally(total=2, skipped=0)
    quick.hear(ended(a, 0.01))
    assert quick.line() == "1 of 2 done, 1 left"


def test_lines_where_there_is_no_terminal(tmp_path, capfd):
    summary = run_study(runs(2), "runs_work:bad_seed", tmp_path, engine="inline", retries=0)
    told = capfd.readouterr().err.replace("what a worker prints\n", "").splitlines()
    assert len(told) == summary.total == 2
    seconds = r"\d+\.\d m?s"
    assert re.match(rf"{runs(1)[0].id}: done in {seconds} \[1 of 2 done, 1 left", told[0])
    assert re.search(
        rf"attempt 1 failed after {seconds}: RuntimeError: seed 1 is not good", told[1]
    )


def test_live_table():
    console = pytest.importorskip("rich.console")
    stream = io.StringIO()
    screen = console.Console(file=stream, force_terminal=True, width=120)
    run, other = runs(2)
    with Live(Tally(3, 1), screen) as live:
        task = Task("w:f", run, Path(), attempt=2)
        live.hear(Started(task))
        live.hear(Progress(task, 3, 10, "epoch [3] of 10"))
        live.hear(ended(other, 2.0, "Error: [bad]"))
        screen.print(live.draw())
    text = stream.getvalue()
    for part in (run.id, "3/10", "epoch [3] of 10", "1 of 3 done", "Error: [bad]", "1 failed"):
        assert part in text


def test_quiet_is_quiet(tmp_path, capfd):
    quietly(runs(2), "fails_twice", tmp_path, engine="inline")
    told = capfd.readouterr()
    assert told.out == told.err == ""
