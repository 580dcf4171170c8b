"""Files that are whole, and tensors that the library of the format reads back."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load, save

from gflowout.core import atomic_io


def tensors() -> dict[str, torch.Tensor]:
    source = torch.Generator().manual_seed(0)
    numbers = 100 * torch.rand(3, 5, generator=source)
    made = {str(dtype): numbers.to(dtype) for dtype in atomic_io.DTYPES}
    return {
        "odd": torch.arange(3, dtype=torch.uint8),  # what follows must stay aligned
        **made,
        "turned": numbers.T,
        "part": numbers[:, 1:3],
        "expanded": numbers[:1].expand(4, 5),
        "scalar": torch.tensor(7),
        "nothing": torch.zeros(0, 3),
        "ü/name": torch.ones(1),
    }


def test_safetensors_reads_what_was_written(tmp_path: Path) -> None:
    written, path = tensors(), tmp_path / "a.safetensors"
    blocks = atomic_io.safetensors(written, {"about": 'a "text"\n'})
    atomic_io.write_file(path, lambda stream: stream.writelines(blocks))
    with safe_open(str(path), framework="pt") as file:
        assert file.metadata() == {"about": 'a "text"\n'}
        assert set(file.keys()) == set(written)
        for name, tensor in written.items():
            found = file.get_tensor(name)
            assert found.dtype == tensor.dtype
            assert found.shape == tensor.shape
            assert torch.equal(
                found.contiguous().view(torch.uint8) if found.dim() else found,
                tensor.contiguous().view(torch.uint8) if tensor.dim() else tensor,
            )


def test_data_are_those_of_the_other_writer() -> None:
    written = {name: tensor.contiguous() for name, tensor in tensors().items()}
    ours = load(b"".join(atomic_io.safetensors(written, {})))
    theirs = load(save(written))
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert torch.equal(ours[name].double(), tensor.double())


def test_types_that_the_format_lacks_are_told() -> None:
    with pytest.raises(TypeError, match=r"state 'z' cannot be saved, its type is torch.complex64"):
        list(atomic_io.safetensors({"z": torch.zeros(1, dtype=torch.complex64)}, {}))


def test_nothing_is_left_of_a_failed_write(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"before")

    def blocks():
        yield b"half"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        atomic_io.write_file(tmp_path / "a", lambda stream: stream.writelines(blocks()))
    assert [each.name for each in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"before"
