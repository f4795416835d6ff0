"""The training loop: stages, epochs, steps; what is written when; where it stops."""

import math
import time
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from lrformer.core import LRFormerError, NotFiniteError
from lrformer.core.processes import gather_objects
from lrformer.data import DeviceBatches
from lrformer.methods import Method
from lrformer.training import state as saved
from lrformer.training.best_epoch import CALIBRATED_NLL, BestEpoch
from lrformer.training.config import RuntimeConfig, TrainConfig
from lrformer.training.criterion import Criterion, balanced_weights
from lrformer.training.interruption import Interruption
from lrformer.training.journal import Journal
from lrformer.training.processes import autocast_dtype
from lrformer.training.progress import Display
from lrformer.training.run_folder import LOG_FILE, load_state
from lrformer.training.schedule import learning_rate
from lrformer.training.splits import PlainLoader, class_counts, describe_imbalance
from lrformer.training.stage import start_stage
from lrformer.training.step import epoch_plan
from lrformer.training.validation import (
    describe_predictions,
    fit_temperature_of,
    predict_split,
)

SECONDS_BETWEEN_LOOKS = 0.5
# With several processes, how many steps apart they agree on saving and stopping.
STEPS_BETWEEN_AGREEMENTS = 20


class TrainingDivergedError(LRFormerError, ArithmeticError):
    """A loss or a weight that is no longer a number."""


@dataclass(kw_only=True, eq=False)
class Training:
    """One run in progress; `run` trains every stage from wherever the folder says it stands."""

    config: TrainConfig
    runtime: RuntimeConfig
    folder: Path
    accelerator: Any
    method: Method
    batches: DeviceBatches
    val_batches: DeviceBatches
    position: saved.Position = field(default_factory=saved.Position)
    criterion: Criterion = field(init=False)

    def __post_init__(self) -> None:
        self.device = self.accelerator.device
        self.dtype = autocast_dtype(self.config.precision, self.device)
        counts = class_counts(self.batches.split)
        is_balanced = self.config.class_weights == "balanced"
        self.criterion = Criterion(
            name=self.config.loss,
            label_smoothing=self.config.label_smoothing,
            class_weights=balanced_weights(counts) if is_balanced else None,
            device=self.device,
        )
        self.best = BestEpoch()
        self.method.criterion = self.criterion
        self.learnable = {id(p) for p in self.method.parameters() if p.requires_grad}
        self.steps_per_epoch = len(self.batches) // self.config.accumulate
        pieces = self.config.accumulate * self.accelerator.num_processes
        self.images_per_step = self.batches.batch_size * pieces
        self.steps_per_stage = self.steps_per_epoch * self.config.epochs
        self.display = Display(
            num_epochs=self.config.epochs,
            num_stages=self.method.num_stages,
            num_steps=self.steps_per_stage * self.method.num_stages,
            is_shown=self.accelerator.is_main_process and not self.runtime.quiet,
            seconds_between_lines=self.runtime.seconds_between_lines,
        )

    def run(self) -> None:
        """Train until the last stage is finished.

        Raises:
            TrainingDivergedError: when the loss is not finite; the last state is kept.
            KeyboardInterrupt: after SIGINT or SIGTERM, when the state is written.
        """
        resumed = self._resume()
        self.journal: Journal | None = None
        if self.accelerator.is_main_process:
            self.journal = Journal(
                self.folder,
                position=(self.position.stage, self.position.epoch),
                is_tensorboard=self.runtime.tensorboard,
            )
        self._last_save = time.monotonic()
        closing_journal = nullcontext() if self.journal is None else closing(self.journal)
        with closing_journal, Interruption() as self.interruption, self.display:
            self.display.say(self._summary())
            if resumed is None:
                self.method.train()
                self.method.prepare(PlainLoader(self.batches, share=False))
            elif self.position != saved.Position():
                self.display.say(self._what_comes())
            while self.position.stage < self.method.num_stages:
                self._run_stage(resumed)
                resumed = None

    def _resume(self) -> dict[str, torch.Tensor] | None:
        """Put model and position where the folder says they were; return the rest of the state."""
        found = saved.read_state(self.folder)
        if found is None:
            return None
        self.position, tensors = found
        where = str(saved.state_path(self.folder))
        load_state(self.method, saved.strip_prefix(tensors, "model"), where=where)
        return tensors

    def _start_stage(self, resumed: dict[str, torch.Tensor] | None) -> None:
        self.stage = start_stage(
            self.position.stage,
            config=self.config,
            runtime=self.runtime,
            accelerator=self.accelerator,
            method=self.method,
            learnable=self.learnable,
            criterion=self.criterion,
            batches=self.batches,
            learning_rate=self.learning_rate,
        )
        self.best = BestEpoch()
        if resumed is not None:
            self.stage.load(resumed)
            self.best.load(saved.strip_prefix(resumed, "best"))
            if not self.accelerator.is_main_process:
                self.stage.start_epoch()  # the sums of all are with the first
            own = saved.strip_prefix(resumed, _generators_of(self.accelerator.process_index))
            if own:  # none of a process that was not there before
                saved.load_generators(own, self.device)

    def _run_stage(self, resumed: dict[str, torch.Tensor] | None) -> None:
        self._start_stage(resumed)
        while self.position.epoch < self.config.epochs:
            self._run_epoch()
        if self.stage.average is not None:
            self.stage.average.copy_to_model()
        if self.config.keep == "best":
            self.best.put_back(self.method)
            self.display.say(
                f"kept: epoch {self.best.epoch} of {self.config.epochs}, with a validation nll of {self.best.nll:.4f} after "
                "the temperature"
            )
        self.method.finish_stage()
        self.position = self.position.next_stage()
        self._save(is_between_stages=True)
        # Asked for after the last step, during a validation, say.
        if self._agree(self.interruption.is_wanted)[0]:
            raise KeyboardInterrupt

    def _run_epoch(self) -> None:
        self.method.train()
        if self.position.step == 0:
            self.method.on_epoch_start()
            self.stage.start_epoch()
        now = time.monotonic()
        self._epoch_began = now - self.position.epoch_seconds
        self._last_look = (now, self.position.step)
        # Members of an ensemble see their own orders and augmentations.
        epoch = self.position.stage * self.config.epochs + self.position.epoch
        for _ in self._take_steps(epoch):
            self.position = replace(
                self.position,
                step=self.position.step + 1,
                epoch_seconds=time.monotonic() - self._epoch_began,
            )
            self._after_step()
        self._end_epoch()

    def _take_steps(self, epoch: int) -> Any:
        """Yield after every step of the epoch, from the present position on."""
        first, accumulate = self.position.step, self.config.accumulate
        start = self.position.epoch * self.steps_per_epoch
        if self.stage.captured is not None:
            rows, keys = epoch_plan(
                self.batches, epoch, num_steps=self.steps_per_epoch, accumulate=accumulate
            )
            for step in range(first, self.steps_per_epoch):
                self.stage.step.rates.set(start + step)
                self.stage.captured(rows[step], keys[step])
                yield
            if self.stage.captured.failure is not None:
                self.display.say(f"plain steps, no CUDA graph: {self.stage.captured.failure}")
            return
        pieces = self.batches.epoch(epoch, first_step=first * accumulate)
        for step in range(first, self.steps_per_epoch):
            self.stage.step.rates.set(start + step)
            self.stage.step([next(pieces) for _ in range(accumulate)])
            yield

    def _after_step(self) -> None:
        now = time.monotonic()
        is_epoch_end = self.position.step == self.steps_per_epoch
        is_time_to_look = now - self._last_look[0] >= SECONDS_BETWEEN_LOOKS
        if self.device.type == "cpu" or is_time_to_look or is_epoch_end:
            self._look(now, is_shown=is_time_to_look or is_epoch_end)
        is_stopping, is_saving = self._agree(
            self.interruption.is_wanted, now - self._last_save >= self.runtime.save_seconds
        )
        if is_stopping or (is_saving and not is_epoch_end):
            self._save()
        if is_stopping:
            raise KeyboardInterrupt

    def _agree(self, *wishes: bool) -> list[bool]:
        """Return what any process wishes; one that acted alone would leave the others waiting."""
        if self.accelerator.num_processes == 1:
            return list(wishes)
        is_epoch_end = self.position.step == self.steps_per_epoch
        if self.position.step % STEPS_BETWEEN_AGREEMENTS and not is_epoch_end:
            return [False] * len(wishes)
        own = torch.tensor(wishes, dtype=torch.int64, device=self.device)
        return [bool(count) for count in self.accelerator.reduce(own, "sum").tolist()]

    def _look(self, now: float, *, is_shown: bool) -> None:
        """Read the loss back from the device: stop if it is not finite, else show it."""
        loss, count = self.stage.step.totals.tolist()
        if not math.isfinite(loss):
            raise self._diverged("the loss is not finite")
        if not is_shown:
            return
        since, step = self._last_look
        rate = (self.position.step - step) * self.images_per_step / max(now - since, 1e-9)
        self._last_look = (now, self.position.step)
        self.display.update(
            stage=self.position.stage,
            epoch=self.position.epoch,
            done=self._num_done(),
            loss=loss / count,
            accuracy=_share(self.criterion.counts),
            images_per_second=rate,
        )

    def _sums(self) -> dict[str, torch.Tensor]:
        """Return what all processes have summed in this epoch."""
        own = {"totals": self.stage.step.totals, "counts": self.criterion.counts}
        return {name: self.accelerator.reduce(sums.clone(), "sum") for name, sums in own.items()}

    def _end_epoch(self) -> None:
        totals, counts = self._sums().values()
        loss, count = totals.tolist()
        # Only now, because reading the totals has waited for a GPU that lags behind.
        seconds = time.monotonic() - self._epoch_began
        entry: dict[str, Any] = {
            "stage": self.position.stage,
            "epoch": self.position.epoch,
            "loss": loss / count,
            "accuracy": _share(counts),
            "lr": self.learning_rate((self.position.epoch + 1) * self.steps_per_epoch - 1),
            "seconds": seconds,
            "images_per_second": self.steps_per_epoch * self.images_per_step / max(seconds, 1e-9),
        }
        number = self.position.epoch + 1
        is_last = number == self.config.epochs
        if is_last or number % self.runtime.validate_every == 0 or self.config.keep == "best":
            entry |= {f"val_{name}": value for name, value in self._validate().items()}
        elapsed = self.position.seconds + seconds
        self.position = replace(self.position.next_epoch(), seconds=elapsed)
        if self.journal is not None:
            self.journal.append(entry)
        self.display.end_epoch(entry, self._num_done())
        # Short epochs are not each worth a write.
        late = time.monotonic() - self._last_save >= self.runtime.save_seconds / 10
        if self._agree(late)[0] and self.position.epoch < self.config.epochs:
            self._save()

    def _validate(self) -> dict[str, Any]:
        try:
            self.method.refresh_posterior()
        except NotFiniteError as error:
            raise self._diverged("the precision of the posterior is not finite") from error
        average = self.stage.average
        if average is None:
            return self._judge()
        with average.swapped_in():
            return self._judge()

    def _judge(self) -> dict[str, Any]:
        with self.uncompiled():
            predictive, labels = predict_split(self.method, self.val_batches, dtype=self.dtype)
        if not predictive.logits.isfinite().all():
            raise self._diverged("a prediction on the validation split is not finite")
        figures = describe_predictions(predictive, labels)
        if self.config.keep == "best":
            temperature = fit_temperature_of(self.method, predictive, labels)
            found = describe_predictions(temperature(predictive), labels)["nll"]
            # What one process finds, so that all keep the same epoch.
            figures[CALIBRATED_NLL] = gather_objects(found)[0]
            epoch = self.position.epoch + 1
            self.best.look(self.method, nll=figures[CALIBRATED_NLL], epoch=epoch)
        return figures

    def uncompiled(self) -> Any:
        """Return a context in which a compiled backbone runs as plain code: other shapes are rare there."""
        return torch.compiler.set_stance("force_eager") if self.runtime.compile else nullcontext()

    def _save(self, *, is_between_stages: bool = False) -> None:
        """Write the state, unless a weight is no longer a number: the state before is then the last good one."""
        if not self.stage.is_finite():
            raise self._diverged("a weight is not finite")
        if self.accelerator.num_processes > 1 and not is_between_stages and self.position.step:
            # Each process holds its own part of a posterior; the file must hold the sum.
            self.method.refresh_posterior()
        self._last_save = time.monotonic()
        sums = self._sums()
        generators = gather_objects(saved.generator_tensors(self.device))
        if not self.accelerator.is_main_process:
            return
        tensors = saved.with_prefix(self.method.state_dict(), "model")
        is_over = self.position.stage == self.method.num_stages
        for process, states in enumerate(generators):
            tensors |= saved.with_prefix(states, _generators_of(process))
        if not is_between_stages:
            tensors |= {**self.stage.tensors(), **sums}
            tensors |= saved.with_prefix(self.best.tensors(), "best")
        saved.write_state(self.folder, self.position, tensors, is_over=is_over)

    def _diverged(self, what: str) -> TrainingDivergedError:
        number = self.position.epoch * self.steps_per_epoch + self.position.step
        rate = self.learning_rate(max(number - 1, 0))
        found = saved.read_state(self.folder)
        kept = (
            f"The state of epoch {found[0].epoch + 1}, step {found[0].step} is kept in {self.folder}"
            if found is not None
            else "No state had been written yet"
        )
        has_log = (self.folder / LOG_FILE).is_file()
        place = " in another folder" if found is not None or has_log else ""
        return TrainingDivergedError(
            f"training stopped in epoch {self.position.epoch + 1}, step {self.position.step}: {what} "
            f"(learning rate {rate:.3g}). {kept}. Start a new run{place} with a smaller "
            "lr, a longer warm-up, or clip_norm."
        )

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of a step of a stage."""
        return learning_rate(
            step,
            num_steps=self.steps_per_stage,
            warmup_steps=round(self.config.warmup_epochs * self.steps_per_epoch),
            config=self.config.optimizer,
        )

    def _summary(self) -> str:
        """Return what is about to be trained, in one line."""
        config = self.config
        imbalance = describe_imbalance(self.batches.split)
        if imbalance and self.method.uses_criterion and config.class_weights == "none":
            imbalance += " (--class-weights balanced lets them count alike)"
        return (
            f"{config.start or config.model} with {config.method} on {len(self.batches.split):,} training and "
            f"{len(self.val_batches.split):,} validation samples: "
            f"{config.epochs} epoch{'' if config.epochs == 1 else 's'} of {self.steps_per_epoch} "
            f"step{'' if self.steps_per_epoch == 1 else 's'}, batches of {self.images_per_step}"
            f"{imbalance}"
        )

    def _what_comes(self) -> str:
        """Return what a run that goes on does next."""
        position, num_stages = self.position, self.method.num_stages
        if position.stage == num_stages:
            return "training is finished; going on with posterior, temperature and threshold"
        member = f"member {position.stage + 1}/{num_stages}, " if num_stages > 1 else ""
        epoch = f"{member}epoch {position.epoch + 1}"
        if position.step == self.steps_per_epoch:
            return f"going on after the last step of {epoch}"
        return f"going on at {epoch}, step {position.step + 1}"

    def _num_done(self) -> int:
        return (
            self.position.stage * self.steps_per_stage
            + self.position.epoch * self.steps_per_epoch
            + self.position.step
        )


def _share(counts: torch.Tensor) -> float | None:
    """Return right answers over answers, or None where the loss never saw logits."""
    right, total = counts.tolist()
    return right / total if total else None


def _generators_of(process: int) -> str:
    """Return under which name the state holds the generators of a process."""
    return f"rng-{process}" if process else "rng"
