"""What is shown of a training where there is no terminal."""

import io
from collections.abc import Iterable

import pytest
from rich.console import Console
from rich.progress import Progress

from lrformer.core import ConfigError
from lrformer.training import RuntimeConfig, progress, train
from lrformer.training.progress import Display
from tests.training.small import small


def show_epoch(
    display: Display,
    clock: list[float],
    epoch: int,
    *,
    steps: Iterable[int],
    seconds: float,
    validation: float = 0.0,
    **figures: float,
) -> None:
    """Show an epoch of ten steps: looks after `steps`, each `seconds` after the last one, and its end."""
    for step in steps:
        clock[0] += seconds
        display.update(
            stage=0,
            epoch=epoch,
            done=10 * epoch + step,
            loss=1.0,
            accuracy=None,
            images_per_second=8,
        )
    clock[0] += validation
    entry = {"stage": 0, "epoch": epoch, "loss": 1.0, "images_per_second": 8.0}
    display.end_epoch({**entry, **figures}, 10 * (epoch + 1))


def lines_of(
    capsys, monkeypatch, *, seconds_between_lines: float, is_shown: bool = True
) -> list[str]:
    """Return what ten epochs of 25 seconds each have shown."""
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    display = Display(
        num_epochs=10,
        num_stages=1,
        num_steps=100,
        is_shown=is_shown,
        seconds_between_lines=seconds_between_lines,
    )
    with display:
        for epoch in range(10):
            show_epoch(display, clock, epoch, steps=[5], seconds=0.0, validation=25.0)
    return capsys.readouterr().err.splitlines()


def test_every_epoch_has_a_line(capsys, monkeypatch) -> None:
    lines = lines_of(capsys, monkeypatch, seconds_between_lines=0.0)
    assert [line.split()[1] for line in lines] == [f"{number}/10" for number in range(1, 11)]
    assert lines[-2].endswith("0:25 left")


def test_a_line_a_minute_is_enough_for_a_log(capsys, monkeypatch) -> None:
    lines = lines_of(capsys, monkeypatch, seconds_between_lines=60.0)
    assert [line.split()[1] for line in lines] == ["3/10", "6/10", "9/10", "10/10"]


def lines_a_minute(capsys, monkeypatch, *, num_epochs: int, seconds: float) -> list[str]:
    """Return what epochs of ten steps of so many seconds have shown, with a look after every step."""
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    display = Display(
        num_epochs=num_epochs,
        num_stages=1,
        num_steps=10 * num_epochs,
        is_shown=True,
        seconds_between_lines=60.0,
    )
    for epoch in range(num_epochs):
        figures = {"val_accuracy": 0.5, "val_nll": 1.0}
        show_epoch(display, clock, epoch, steps=range(10), seconds=seconds, **figures)
    return capsys.readouterr().err.splitlines()


def test_a_validation_is_not_laid_to_the_last_steps_before_it(capsys, monkeypatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    display = Display(num_epochs=10, num_stages=1, num_steps=100, is_shown=True)
    for epoch, first in ((4, 8), (5, 1)):  # resumed late in the fifth epoch
        show_epoch(display, clock, epoch, steps=range(first, 11), seconds=1.0, validation=10.0)
    lines = capsys.readouterr().err.splitlines()
    # Steps of a second; then whole epochs of ten with ten seconds of validation.
    assert [line.split("images/s")[1].strip() for line in lines] == ["0:50 left", "1:20 left"]


def test_the_steps_of_a_short_epoch_do_not_write_its_line_twice(capsys, monkeypatch) -> None:
    lines = lines_a_minute(capsys, monkeypatch, num_epochs=40, seconds=1.0)
    shown = [line.split()[1] for line in lines]
    assert shown == [*(f"{number}/40" for number in range(6, 40, 6)), "40/40"]


def test_epochs_that_take_minutes_have_lines_of_their_own_and_some_between(
    capsys, monkeypatch
) -> None:
    lines = lines_a_minute(capsys, monkeypatch, num_epochs=3, seconds=20.0)
    assert [line.split()[1] for line in lines if "  val " in line] == ["1/3", "2/3", "3/3"]
    assert sum("  val " not in line for line in lines) == 9


def test_nothing_is_shown_where_it_is_not_wanted(capsys, monkeypatch) -> None:
    assert not lines_of(capsys, monkeypatch, seconds_between_lines=0.0, is_shown=False)


@pytest.mark.parametrize(("seconds", "num_lines"), [(0.0, 3), (1e9, 1)])
def test_a_training_passes_the_time_between_lines_on(capsys, tmp_path, seconds, num_lines) -> None:
    runtime = RuntimeConfig(device="cpu", seconds_between_lines=seconds)
    train(small(), tmp_path, runtime=runtime)
    lines = capsys.readouterr().err.splitlines()
    assert sum(line.startswith("epoch ") for line in lines) == num_lines


def test_on_a_terminal_every_epoch_has_a_line(monkeypatch, capsys) -> None:
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True, raising=False)
    lines = lines_of(capsys, monkeypatch, seconds_between_lines=1e9)
    assert sum("images/s" in line and "epoch" in line for line in lines) >= 10


def test_a_negative_time_between_lines_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"seconds_between_lines \(-1\) must not be negative"):
        RuntimeConfig(seconds_between_lines=-1)


def test_what_is_said_is_shown_as_it_is(monkeypatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    written = io.StringIO()
    with Display(num_epochs=1, num_stages=1, num_steps=1, is_shown=True) as display:
        display._bar = Progress(console=Console(file=written, width=200))
        for name in ("runs/[red]a", "runs/[/b]a"):
            display.say(f"the weights of {name}")
    assert written.getvalue().splitlines()[:2] == [
        "the weights of runs/[red]a",
        "the weights of runs/[/b]a",
    ]
