"""Several processes share a record and its runs; none overwrites another, and none that died is waited for."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from filelock import FileLock

from lrformer.core import ConfigError
from lrformer.recipes import plan_runs, sharing
from lrformer.recipes.sharing import is_in_hand, lock_path, sole_writer, take_in_hand
from lrformer.recipes.table_record import (
    TableRecord,
    add_to_record,
    read_table_record,
    write_table_record,
)
from lrformer.training.atomic_files import RunFileError
from tests.recipes.made_table import made_run, small_table

HOLD = """
import sys
from filelock import FileLock
lock = FileLock(sys.argv[1])
lock.acquire()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that has the run of the folder in hand."""
    words = [sys.executable, "-c", HOLD, str(lock_path(tmp_path / "seed-0"))]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def test_many_writers_at_once_lose_no_entry(tmp_path):
    path = tmp_path / "record.json"
    runs = [made_run(run) for run in plan_runs(small_table("cifar10"), num_seeds=10)]
    with ThreadPoolExecutor(5) as pool:
        list(
            pool.map(lambda run: add_to_record(path, run, table="attentions", data="cifar10"), runs)
        )
    record = read_table_record(path, table="attentions", data="cifar10")
    assert sorted((run.row, run.seed) for run in record.runs) == sorted(
        (run.row, run.seed) for run in runs
    )
    assert sorted(file.name for file in tmp_path.iterdir()) == [".record.json.lock", "record.json"]


def test_a_run_is_not_added_to_the_record_of_another_table(tmp_path):
    path = tmp_path / "record.json"
    write_table_record(path, TableRecord(table="alpha", data="cifar10"))
    before = path.read_bytes()
    run = made_run(plan_runs(small_table("cifar10"), num_seeds=1)[0])
    for _ in range(2):  # the lock is let go
        with pytest.raises(ConfigError, match="record of table 'alpha'"):
            add_to_record(path, run, table="attentions", data="cifar10")
    assert path.read_bytes() == before


def test_a_run_is_in_one_hand_until_its_process_is_killed(holder, tmp_path):
    folder = tmp_path / "seed-0"
    assert is_in_hand(folder)
    with take_in_hand(folder) as is_ours:
        assert not is_ours
    holder.kill()
    holder.wait()
    assert not is_in_hand(folder)
    with take_in_hand(folder) as is_ours:
        assert is_ours
        assert is_in_hand(folder)
    assert not is_in_hand(folder)


def test_an_error_lets_a_run_go(tmp_path):
    with pytest.raises(ArithmeticError), take_in_hand(tmp_path / "seed-0"):
        raise ArithmeticError
    assert not is_in_hand(tmp_path / "seed-0")


def test_looking_whether_a_run_is_in_hand_writes_nothing(tmp_path):
    assert not is_in_hand(tmp_path / "row" / "seed-0")
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "row").write_text("a file")
    message = r"row cannot be made \(.*row is a file and must be a folder\)"
    with pytest.raises(RunFileError, match=message), take_in_hand(tmp_path / "row/x"):
        pass


@pytest.fixture
def foreign(tmp_path, monkeypatch):
    """The folder of a run whose lock belongs to another user; root would be allowed to open it."""
    run = tmp_path / "seed-0"
    lock_path(run).touch()

    def refuse(lock, *_, **__):
        raise PermissionError(13, "Permission denied", lock.lock_file)

    monkeypatch.setattr(FileLock, "_acquire", refuse)
    return run


def test_a_lock_of_another_user_is_not_known_to_be_in_hand(foreign):
    assert not is_in_hand(foreign)


@pytest.mark.parametrize("take", [take_in_hand, sole_writer])
def test_a_lock_of_another_user_cannot_be_taken_and_the_way_out_is_said(foreign, take):
    message = r"\.seed-0\.lock cannot be opened \(Permission denied\).* choose another --out"
    with pytest.raises(RunFileError, match=message), take(foreign):
        pass


def test_who_only_looks_for_a_moment_has_nothing_in_hand(tmp_path, monkeypatch):
    monkeypatch.setattr(sharing, "SECONDS_OF_PATIENCE", 10.0)
    lock = FileLock(lock_path(tmp_path / "seed-0"), thread_local=False)
    lock.acquire()
    looker = threading.Timer(0.1, lock.release)
    looker.start()
    assert not is_in_hand(tmp_path / "seed-0")
    looker.join()


def test_a_link_has_the_lock_of_what_it_leads_to(tmp_path):
    (tmp_path / "real").mkdir()
    target, link = tmp_path / "real" / "table.json", tmp_path / "link.json"
    target.write_text("{}")
    link.symlink_to(target)
    assert lock_path(link) == lock_path(target)
    with take_in_hand(target) as is_ours:
        assert is_ours
        assert is_in_hand(link)
