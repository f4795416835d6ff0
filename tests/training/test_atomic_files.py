"""A file of a run is the old one or the new one, and what stands against it is named."""

import os

import pytest
import torch

from lrformer.core import ConfigError
from lrformer.training.atomic_files import (
    RunFileError,
    check_writable,
    read_metadata,
    replace_file,
    replacing,
    write_tensors,
)


def test_a_full_disk_leaves_the_old_file_and_no_rubbish(tmp_path, monkeypatch):
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RunFileError, match="No space left on device"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.mark.parametrize("inside", ["record.json", "deeper/record.json"])
def test_a_file_where_a_folder_must_be_is_named(tmp_path, inside):
    file = tmp_path / "out"
    file.write_text("mine")
    for put in (check_writable, lambda path: replace_file(path, b"new")):
        with pytest.raises(RunFileError, match=f"{file} is a file and must be a folder") as raised:
            put(file / inside)
        assert "unchanged" not in str(raised.value)  # there was nothing
    assert file.read_text() == "mine"


def test_a_file_is_read_beside_its_place_before_it_takes_it(tmp_path):
    path = tmp_path / "predictor.pt2"
    path.write_bytes(b"old")
    with replacing(path, b"new") as beside:
        assert (beside.parent, beside.suffix) == (tmp_path, ".pt2")
        assert beside.read_bytes() == b"new"
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error), replacing(path, b"newer"):
            raise error
        assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_may_be_read_by_those_whom_the_umask_lets(tmp_path):
    for mask, mode in ((0o077, 0o600), (0o002, 0o664)):
        before = os.umask(mask)
        try:
            replace_file(tmp_path / "model.safetensors", b"new")
        finally:
            os.umask(before)
        assert (tmp_path / "model.safetensors").stat().st_mode & 0o777 == mode


def test_what_a_link_leads_to_is_replaced_and_the_link_stays(tmp_path):
    (tmp_path / "real").mkdir()
    target, link = tmp_path / "real" / "record.json", tmp_path / "record.json"
    target.write_bytes(b"old")
    link.symlink_to(target)
    replace_file(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert [entry.name for entry in target.parent.iterdir()] == ["record.json"]


def test_metadata_is_read_without_the_tensors(tmp_path):
    path = tmp_path / "state.safetensors"
    write_tensors(path, {"a": torch.ones(2)}, metadata={"schema": "1", "is_over": "true"})
    assert read_metadata(path) == {"schema": "1", "is_over": "true"}
    path.write_bytes(b"no tensors")
    with pytest.raises(ConfigError, match="is not a safetensors file"):
        read_metadata(path)
