"""SIGTERM, damaged checkpoints, lost rows: a run that goes on ends as if nothing had happened."""

import math
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from test_training import batches, interrupt, same_weights, wrapped

from gflowout.training import FitOptions, TerminatedError, TrainingWarning, checkpoints, fit
from gflowout.training import signals as training_signals

lightning = pytest.importorskip("lightning")

OPTIONS = FitOptions(epochs=4, lr=0.01)


class Terminate(lightning.Callback):
    """Sends SIGTERM before the first batch of the second epoch."""

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        if trainer.current_epoch == 1:
            signal.raise_signal(signal.SIGTERM)


def train(folder: Path | None, *callbacks: Any, **more: Any) -> Any:
    model = wrapped()
    result = fit(
        model, *batches(), OPTIONS, folder=folder, progress=False, callbacks=callbacks, **more
    )
    return model, result


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    return train(folder)[0], folder


@pytest.fixture
def finished(whole: tuple[Any, Path], tmp_path: Path) -> Path:
    """A copy of its folder."""
    for path in whole[1].rglob("*.*"):
        if path.is_file():
            copy = tmp_path / path.relative_to(whole[1])
            copy.parent.mkdir(exist_ok=True)
            copy.write_bytes(path.read_bytes())
    return tmp_path


# SIGTERM


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may be slow."""
    monkeypatch.setattr(training_signals, "GRACE", math.inf)


def test_sigterm_saves_the_epoch_and_says_how_to_go_on(whole: Any, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(TerminatedError, match=r"ended by SIGTERM; complete epochs are in .*again"):
        train(tmp_path, Terminate())
    assert signal.getsignal(signal.SIGTERM) is before
    assert sorted(checkpoints.epochs(tmp_path / "checkpoints")) == [0, 1]
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 1 + 2
    model, result = train(tmp_path)
    assert result.resumed == 2
    assert same_weights(model, whole[0])


@pytest.mark.parametrize("reason", ["a long epoch", "a second signal"])
def test_sigterm_does_not_always_wait_for_the_epoch(
    whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    more = [Terminate()]
    if reason == "a long epoch":
        monkeypatch.setattr(training_signals, "GRACE", -1.0)
    else:
        more.append(Terminate())
    with pytest.raises(TerminatedError):
        train(tmp_path, *more)
    assert sorted(checkpoints.epochs(tmp_path / "checkpoints")) == [0]
    model, result = train(tmp_path)
    assert result.resumed == 1
    assert same_weights(model, whole[0])


def test_sigterm_in_the_last_epoch_is_not_lost(whole: Any, tmp_path: Path) -> None:
    class AtTheEnd(lightning.Callback):
        def on_train_end(self, *_: Any) -> None:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(TerminatedError):
        train(tmp_path, AtTheEnd())
    model, result = train(tmp_path)
    assert result.resumed == 4
    assert same_weights(model, whole[0])


def test_sigterm_without_a_folder_and_with_a_handler_of_ones_own() -> None:
    calls: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: calls.append(number))
    try:
        with pytest.raises(KeyboardInterrupt, match="nothing is saved: fit has no folder"):
            train(None, Terminate())
    finally:
        signal.signal(signal.SIGTERM, before)
    assert calls == [signal.SIGTERM]


# Damage


def flipped(content: bytes, bit: int) -> bytes:
    damaged = bytearray(content)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def test_no_bit_of_a_checkpoint_can_flip_unnoticed(finished: Path) -> None:
    path = checkpoints.path_of(finished / "checkpoints", 3)
    content = path.read_bytes()
    assert checkpoints.read(path)
    bits = 8 * len(content)
    places = {*range(0, bits, bits // 300), *range(bits - 8 * 48, bits, 5), bits - 1}
    for bit in sorted(places):
        path.write_bytes(flipped(content, bit))
        with pytest.raises(Exception):  # noqa: B017, PT011 - damage outside of tensors raises much
            checkpoints.read(path)


@pytest.mark.parametrize("place", [0.1, 0.5, 0.9])
def test_the_checkpoint_before_a_damaged_one_is_taken(
    whole: Any, finished: Path, place: float
) -> None:
    path = checkpoints.path_of(finished / "checkpoints", 3)
    content = path.read_bytes()
    path.write_bytes(flipped(content, int(place * 8 * len(content))))
    expected = r"epoch-00003\.ckpt: cannot be read \(ChecksumError\); going on after epoch 3"
    with pytest.warns(TrainingWarning, match=expected):
        model, result = train(finished)
    assert result.resumed == 3
    assert same_weights(model, whole[0])


def test_a_run_does_not_go_on_without_its_best_epoch(tmp_path: Path) -> None:
    history = [{"epoch": epoch, "valid/nll": loss} for epoch, loss in enumerate([2.0, 1.0, 3.0])]
    paths = [checkpoints.path_of(tmp_path, epoch) for epoch in range(3)]
    for epoch, path in enumerate(paths):
        checkpoints.write(path, {checkpoints.HISTORY: history[: epoch + 1]})
    assert checkpoints.last(tmp_path) == paths[2]
    paths[1].write_bytes(flipped(paths[1].read_bytes(), 999))
    expected = r"epoch-00001\.ckpt: cannot be read \(ChecksumError\); going on after epoch 1"
    with pytest.warns(TrainingWarning, match=expected):
        assert checkpoints.last(tmp_path) == paths[0]
    paths[0].unlink()
    with pytest.warns(TrainingWarning, match="starting anew"):
        assert checkpoints.last(tmp_path) is None


def test_checkpoints_of_earlier_versions_have_no_checksum(whole: Any, finished: Path) -> None:
    for path in checkpoints.epochs(finished / "checkpoints").values():
        torch.save(checkpoints.read(path), path)
    model, result = train(finished, unpack=interrupt(1))
    assert result.resumed == 4
    assert same_weights(model, whole[0])


# Rows


def test_a_row_that_was_lost_comes_back(finished: Path) -> None:
    table = finished / "metrics.csv"
    expected = table.read_text()
    table.write_text("".join(expected.splitlines(keepends=True)[:-1]))
    train(finished, unpack=interrupt(1))
    assert table.read_text() == expected
    table.unlink()
    train(finished, unpack=interrupt(1))
    assert table.read_text() == expected


def test_a_new_start_has_no_rows_of_the_run_before(finished: Path) -> None:
    with pytest.raises(InterruptedError):
        train(finished, resume=False, unpack=interrupt(1))
    assert not (finished / "metrics.csv").exists()
