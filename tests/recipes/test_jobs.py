import subprocess
import sys
import time
from pathlib import Path

import pytest

from lrformer.recipes.jobs import Job, count_lines, run_jobs


def write_lines(path: Path, number: int) -> int:
    path.write_text("line\n" * number)
    return number


def fail() -> None:
    raise ValueError("this job fails")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_results_come_in_the_order_of_the_jobs_and_logs_are_shown(num_workers, tmp_path):
    logs = [tmp_path / f"{number}.log" for number in range(3)]
    jobs = [
        Job(function=write_lines, arguments=(log, number + 1), log=log)
        for number, log in enumerate(logs)
    ]
    seen: dict[int, int] = {}
    assert run_jobs(jobs, num_workers=num_workers, show=seen.__setitem__) == [1, 2, 3]
    assert seen == {0: 1, 1: 2, 2: 3}


def test_a_job_that_fails_raises_its_error(tmp_path):
    job = Job(function=fail, arguments=(), log=tmp_path / "log")
    with pytest.raises(ValueError, match="this job fails"):
        run_jobs([job], num_workers=1)


def test_a_log_that_is_not_there_has_no_lines(tmp_path):
    assert count_lines(tmp_path / "nothing") == 0


PARENT = """
import sys, time
from pathlib import Path
from lrformer.recipes.jobs import Job, run_jobs
from tests.recipes.test_jobs import wait_and_write
if __name__ == "__main__":
    path = Path(sys.argv[1])
    run_jobs([Job(function=wait_and_write, arguments=(path,), log=path)], num_workers=1)
"""


def wait_and_write(path: Path) -> None:
    import os

    path.write_text(str(os.getpid()))
    time.sleep(600)


def test_workers_end_when_the_process_that_started_them_is_killed(tmp_path):
    script, path = tmp_path / "parent.py", tmp_path / "pid"
    script.write_text(PARENT)
    root = Path(__file__).parents[2]
    parent = subprocess.Popen(
        [sys.executable, str(script), str(path)], cwd=root, env={"PYTHONPATH": str(root)}
    )
    try:
        _wait_until(lambda: path.is_file() and path.read_text())
        worker = Path(f"/proc/{path.read_text()}")
        if not worker.exists():
            pytest.skip("no /proc to look at")
    finally:
        parent.kill()
        parent.wait()
    _wait_until(lambda: not worker.exists())


def _wait_until(is_true, seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.1)
