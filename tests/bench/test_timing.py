from contextlib import contextmanager

import pytest
import torch

from lrformer.bench.place import Place
from lrformer.bench.timing import Work, interleaved_times


class FakePlace(Place):
    """A device whose clock stands still except while something works."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self.now = 0.0

    def milliseconds(self, work) -> float:
        before = self.now
        work()
        return self.now - before


def worker(place: FakePlace, log: list[str], name: str, milliseconds: float, **more) -> Work:
    def call() -> None:
        log.append(name)
        place.now += milliseconds

    return Work(call=call, **more)


def test_times_are_those_of_one_call_whatever_a_sample_holds():
    place, log = FakePlace(), []
    works = {"short": worker(place, log, "s", 0.25), "long": worker(place, log, "l", 7.0)}
    times = interleaved_times(place, works, max_samples=9, seconds=0.05)
    assert times["short"].median == pytest.approx(0.25)
    assert times["short"].calls_in_a_sample == 4
    assert times["long"].median == pytest.approx(7.0)
    assert times["long"].calls_in_a_sample == 1


def test_contenders_take_turns():
    place, log = FakePlace(), []
    works = {"a": worker(place, log, "a", 2.0), "b": worker(place, log, "b", 2.0)}
    interleaved_times(place, works, max_samples=5, seconds=1.0)
    assert log[-10:] == ["a", "b"] * 5


def test_a_long_contender_gets_fewer_samples_but_never_less_than_five():
    place, log = FakePlace(), []
    works = {"short": worker(place, log, "s", 1.0), "long": worker(place, log, "l", 900.0)}
    times = interleaved_times(place, works, max_samples=40, seconds=0.02)
    assert len(times["short"].samples) == 20
    assert len(times["long"].samples) == 5


def test_no_more_samples_are_taken_than_asked_for():
    place = FakePlace()
    times = interleaved_times(place, {"a": worker(place, [], "a", 1.0)}, max_samples=3, seconds=1.0)
    assert len(times["a"].samples) == 3


def test_a_call_of_several_parts_counts_each():
    place = FakePlace()
    works = {"graph": worker(place, [], "g", 8.0, num_parts=4)}
    assert interleaved_times(place, works, max_samples=5, seconds=1.0)["graph"].median == 2.0


def test_entering_a_context_is_not_timed():
    place = FakePlace()

    @contextmanager
    def slow():
        place.now += 100.0
        yield

    times = interleaved_times(
        place, {"a": worker(place, [], "a", 2.0, context=slow)}, max_samples=5, seconds=1.0
    )
    assert times["a"].samples == (2.0,) * 5


def test_a_contender_that_speeds_up_later_keeps_every_sample():
    place, durations = FakePlace(), iter([1.0] * 6 + [5.0, 1.0, 3.0, 2.0, 4.0])

    def call() -> None:
        place.now += next(durations)

    times = interleaved_times(place, {"a": Work(call=call)}, max_samples=5, seconds=1.0)
    assert times["a"].samples == (5.0, 1.0, 3.0, 2.0, 4.0)
    assert times["a"].median == 3.0
    assert times["a"].to_record()["samples"] == [5.0, 1.0, 3.0, 2.0, 4.0]


@pytest.mark.gpu
def test_a_captured_graph_does_what_the_call_does():
    place = Place("cuda")
    total = torch.zeros((), device="cuda")
    replay = place.captured(lambda: total.add_(1))
    place.wait()
    before = total.item()
    replay()
    replay()
    assert total.item() == before + 2


@pytest.mark.gpu
def test_peak_memory_is_what_a_call_takes_beyond_what_is_held():
    place = Place("cuda")
    held = torch.zeros(2**22, device="cuda")
    assert place.extra_peak_bytes(lambda: held + 1) == 2**24
    assert place.extra_peak_bytes(lambda: held.add_(1)) == 0


@pytest.mark.gpu
def test_a_captured_work_keeps_the_inputs_that_it_reads():
    place = Place("cuda")
    x = torch.full((64, 2**20), 3.0, device="cuda")
    out = torch.zeros(64, device="cuda")

    def work(x=x) -> None:
        torch.sum(x, 1, out=out)

    replay = place.captured(work)
    del x, work
    place.release()
    out.zero_()
    replay()
    place.wait()
    assert torch.equal(out, torch.full_like(out, 3.0 * 2**20))


def test_without_a_gpu_the_kernels_that_need_one_are_left_out():
    assert Place("cpu").backends == ("reference", "sdpa")
