"""A time limit stops the work as Ctrl-C would, and nothing else."""

import signal
import threading
import time

import pytest

from lrformer.recipes.time_limit import TimeLimit


def test_a_limit_that_is_not_reached_interrupts_nobody():
    with TimeLimit(1.0) as limit:
        assert limit.admits(None)
        assert limit.admits(0.01)
        assert limit.admits(10.0)  # no limit of this length would do
    time.sleep(1.1)
    assert not limit.is_over
    assert TimeLimit(None).admits(1e9)


def test_the_time_of_a_limit_begins_with_its_block():
    limit = TimeLimit(60.0)
    time.sleep(0.3)
    with limit:
        assert limit.left > 59.75


@pytest.fixture
def _ignored():
    """Ctrl-C is ignored, as in a job that a script started with `&`."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_ignored")
def test_a_limit_also_stops_a_process_that_ignores_ctrl_c():
    with pytest.raises(KeyboardInterrupt), TimeLimit(0.05) as limit:
        time.sleep(5)
    assert limit.is_over
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@pytest.mark.usefixtures("_ignored")
@pytest.mark.parametrize("seconds", [None, 60.0])
def test_ctrl_c_is_listened_to_only_under_a_limit_and_only_in_the_main_thread(seconds):
    heard = []

    def enter():
        with TimeLimit(seconds):
            heard.append(signal.getsignal(signal.SIGINT))

    enter()
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    ours = signal.SIG_IGN if seconds is None else signal.default_int_handler
    assert heard == [ours, signal.SIG_IGN]


def test_a_suspended_limit_interrupts_after_the_block_and_not_in_it():
    seen = []

    def work(limit):
        with limit.suspended():
            time.sleep(0.05)
        seen.append("short")
        time.sleep(5)
        seen.append("never")

    with pytest.raises(KeyboardInterrupt), TimeLimit(0.2) as limit:
        work(limit)
    assert seen == ["short"]
    assert limit.is_over


def test_what_is_longer_than_a_suspended_limit_ends_and_nothing_is_begun_after_it():
    with TimeLimit(0.05) as limit:
        with limit.suspended():
            time.sleep(0.15)
        assert limit.left <= 0
        assert not limit.admits(None)
    assert not limit.is_over


def test_a_limit_beyond_all_times_is_one():
    failed = []
    hook, threading.excepthook = threading.excepthook, failed.append
    try:
        with TimeLimit(float("inf")) as limit:
            time.sleep(0.05)
            assert limit.admits(1e9)
    finally:
        threading.excepthook = hook
    assert not failed
    assert not limit.is_over
