"""`train`: from a config to a finished run in a folder; the same call goes on where it was stopped."""

import dataclasses
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lrformer._version import __version__
from lrformer.core import ConfigError, seed_everything, to_record
from lrformer.core.processes import gather_objects
from lrformer.data import DATASETS, DeviceBatches, Split
from lrformer.data.loading import check_skips, is_image_folder
from lrformer.data.preparation_lines import show_preparation
from lrformer.methods import Method, create_method
from lrformer.methods.gaussian_process import GaussianProcessMethod
from lrformer.training.backbone import (
    BackboneRecord,
    backbone_img_size,
    resolve_model,
)
from lrformer.training.best_epoch import describe_overfitting, kept_epochs
from lrformer.training.claim import check_is_shared, check_same, claim_folder, sole_process
from lrformer.training.config import (
    RuntimeConfig,
    TrainConfig,
    default_batch_size,
    default_lr,
)
from lrformer.training.doubles import warn_of_doubles
from lrformer.training.length_scale import (
    LengthScaleChoice,
    check_length_scale,
    choose_length_scale,
)
from lrformer.training.loop import Training
from lrformer.training.metrics_file import (
    METRICS_FILE,
    forget_metrics,
    is_finished,
    read_training,
    replace_metrics,
    update_metrics,
)
from lrformer.training.processes import idle_gpus, start_accelerator
from lrformer.training.refit import (
    check_weights_of,
    take_log,
    take_weights,
    way_to,
)
from lrformer.training.run_config import RunConfig, is_run, read_run_config
from lrformer.training.run_folder import (
    MODEL_FILE,
    Run,
    file_checksum,
    is_whole,
    load_run,
    save_method,
    write_decision,
)
from lrformer.training.score_choice import check_score, choose_score_of_run, describe_choice
from lrformer.training.settings_check import check_pieces, check_used
from lrformer.training.splits import (
    PlainLoader,
    check_augment,
    check_batch_size,
    load_splits,
    training_batches,
    validation_batches,
)
from lrformer.training.start import (
    backbone_factory,
    record_backbone,
    run_in_place_of_start,
    seen_validation,
    take_model_of_start,
)
from lrformer.training.state import remove_state, state_path
from lrformer.training.validation import (
    describe_predictions,
    fit_decision,
    fit_temperature_of,
    predict_split,
    rough_temperature,
    rough_threshold,
    weak_classes,
)

SEED_STRIDE = 1_000_003


def train(
    config: TrainConfig,
    out: str | os.PathLike[str],
    *,
    runtime: RuntimeConfig | None = None,
    weights_of: str | os.PathLike[str] | None = None,
) -> Run:
    """Return the finished run in the folder `out`: trained, its posterior, temperature and threshold fitted.

    Called again with the same config after an interruption of any kind it goes on where it stopped,
    on the CPU with as many threads to the same bits; called on a finished run it only loads it. Under `accelerate launch`
    or `torchrun` every process makes the same call.

    >>> run = train(TrainConfig(data="digits", epochs=20), "runs/digits")

    Args:
        weights_of: the folder of a finished run that differs from `config` in what is done after training alone
            (see `settings_after_training` of the method's config). Its weights are taken, and only posterior,
            temperature and threshold are fitted; `metrics.json` says whose weights they are.

    Raises:
        ConfigError: for settings that cannot work, or a folder that belongs to another run.
        TrainingDivergedError: when the loss is no longer a number.
        KeyboardInterrupt: after Ctrl-C or SIGTERM, when the state is written.
    """
    if not isinstance(config, TrainConfig):
        raise ConfigError(
            f"config (a {type(config).__name__}) must be a TrainConfig, as in train(TrainConfig(data='digits'), 'runs/digits')."
        )
    runtime = runtime or RuntimeConfig()
    folder = Path(out)
    source = None if weights_of is None else Path(weights_of)
    has_weights = is_finished(folder) and (folder / MODEL_FILE).is_file()
    if has_weights and not is_whole(folder):
        # What is missing is fitted to the weights that are there, wherever they came from.
        source = None
    config = with_whole_path(config)
    known = run_in_place_of_start(config, source or folder)
    config = take_model_of_start(config, known, folder=source or folder)
    accelerator = start_accelerator(runtime.device)
    is_shown = not runtime.quiet and accelerator.is_local_main_process
    with accelerator.main_process_first(), show_preparation(is_shown):
        train_split, val_split = load_splits(config)
    if source is None and not is_run(folder):  # one from before this was refused goes on
        check_augment(config, train_split)
        if config.skip_unreadable:
            check_skips(config.data)
    config = resolve(config, train_split)
    check_batch_size(config, train_split, world_size=accelerator.num_processes)
    seed_everything(config.seed)
    method, record, img_size = _create(config, train_split, known)
    check_length_scale(method, train_split)
    check_score(config, method, val_split)
    check_pieces(config, method)
    if source is None and not is_run(folder):
        check_used(config, train_split, method)
    run_config = RunConfig(
        train=config,
        backbone=record,
        class_names=train_split.class_names,
        mean=train_split.mean,
        std=train_split.std,
        img_size=img_size,
        data_digest=train_split.digest,
        scales_files=train_split.is_image and is_image_folder(config.data),
    )
    if source is not None:
        check_weights_of(source, run_config)
    with accelerator.main_process_first():
        claim_folder(folder, run_config)
    check_is_shared(folder)
    # A damaged file that was deleted, as its error says, is made anew with the rest.
    if is_finished(folder) and is_whole(folder):
        if accelerator.is_main_process:
            remove_state(folder)  # what an interruption in the last moment has left
        return load_run(folder, device=accelerator.device)
    if source is None and has_weights:
        source = folder
    if source is None and is_whole(folder) and not state_path(folder).is_file():
        raise ConfigError(
            f"{folder} has the files of a finished run, and {METRICS_FILE} says nothing of its training or is gone; it "
            "would be trained anew. Restore that file from a copy: the other commands work without it. To train anew, "
            f"delete {MODEL_FILE} or choose another folder."
        )
    if source not in (None, folder) and state_path(folder).is_file():
        raise ConfigError(
            f"{folder} holds a training of its own that is not finished; go on with it by its train command, or "
            "choose another folder."
        )
    if accelerator.process_index:
        seed_everything(config.seed + SEED_STRIDE * accelerator.process_index)
    training = Training(
        config=config,
        runtime=runtime,
        folder=folder,
        accelerator=accelerator,
        method=method.to(accelerator.device),
        batches=training_batches(
            config,
            train_split,
            image_size=img_size,
            device=accelerator.device,
            rank=accelerator.process_index,
            world_size=accelerator.num_processes,
            is_compiled=runtime.compile,
        ),
        val_batches=validation_batches(val_split, image_size=img_size, device=accelerator.device),
    )
    with sole_process(folder) if accelerator.is_main_process else nullcontext():
        # Until now another process could claim a folder in which nothing was trained, and finish the run in it.
        check_same(folder, read_run_config(folder), run_config)
        if gather_objects(is_finished(folder) and is_whole(folder))[0]:
            return load_run(folder, device=accelerator.device)
        if source is None:
            if training.display.is_shown:
                for warning in (
                    idle_gpus(accelerator.device, accelerator.num_processes),
                    seen_validation(config, val_split, data_digest=train_split.digest),
                    *warn_of_doubles(train_split, val_split),
                ):
                    if warning is not None:
                        training.display.say(warning)
            training.run()
        else:
            _take_over(training, source)
        _finish(training, source)
    return load_run(folder, device=accelerator.device)


def with_whole_path(config: TrainConfig) -> TrainConfig:
    """Return `config` with the whole paths of a folder of data and of prepared data: a run may be opened from anywhere."""
    if config.root is not None:
        config = dataclasses.replace(config, root=str(Path(config.root).expanduser().resolve()))
    place = Path(config.data).expanduser()
    if config.data in DATASETS or not place.is_dir():
        return config
    return dataclasses.replace(config, data=str(place.resolve()))


def check_run(config: TrainConfig) -> Split:
    """Return the training split of a run, or raise what `train` would raise before it begins; nothing is written."""
    config = take_model_of_start(config)
    split = check_data(config)
    config = resolve(config, split)
    method, *_ = _create(config, split, None)
    check_length_scale(method, split)
    check_score(config, method, split)
    check_pieces(config, method)
    return split


def check_data(config: TrainConfig) -> Split:
    """Return the training split of a run, or raise where the data cannot be trained on, whatever the model."""
    if config.skip_unreadable:
        check_skips(config.data)
    split, _ = load_splits(config)
    check_augment(config, split)
    check_batch_size(config, split, world_size=1)
    return split


def _take_over(training: Training, source: Path) -> None:
    """Put a run where it would stand after a training that `source` has been through."""
    training.display.say(
        f"the weights of {source}: posterior, temperature and threshold are fitted to "
        f"{len(training.batches.split):,} training and {len(training.val_batches.split):,} validation samples"
    )
    take_weights(training.method, source)
    training.position = dataclasses.replace(
        training.position,
        stage=training.method.num_stages,
        seconds=read_training(source)["seconds"],
    )


def resolve(config: TrainConfig, split: Split) -> TrainConfig:
    """Return `config` with what it leaves open filled in: batch size, learning rate and model."""
    if config.batch_size is None:
        config = dataclasses.replace(config, batch_size=default_batch_size(len(split)))
    settled = {"weight_decay": config.optimizer.decay}
    if config.optimizer.lr is None:
        settled["lr"] = default_lr(config)
    optimizer = dataclasses.replace(config.optimizer, **settled)
    config = dataclasses.replace(config, optimizer=optimizer)
    return resolve_model(config, split)


def _create(
    config: TrainConfig, split: Split, known: RunConfig | None
) -> tuple[Method, BackboneRecord, int | None]:
    """Return the method with its first weights, the record of its backbone and its image size."""
    make = backbone_factory(config, split, known)
    built: list[tuple[BackboneRecord, int | None]] = []

    def make_and_describe() -> nn.Module:
        backbone = make()
        if not built:
            size = backbone_img_size(backbone) if split.is_image else None
            built.append((record_backbone(backbone, config, known), size))
        return backbone

    method = create_method(
        config.method, make_and_describe, split.num_classes, **config.method_overrides
    )
    return method, *built[0]


def _finish(training: Training, source: Path | None) -> None:
    """Fit the posterior and the decision, and write everything that a finished run has.

    Args:
        source: the run whose weights were taken, and whose log comes along; or the folder itself, where the weights
            were there already.
    """
    config, method, accelerator = training.config, training.method, training.accelerator
    method.eval()
    with training.uncompiled():
        choice = _fit_posterior(training)
        predictive, labels = predict_split(method, training.val_batches)
        temperature = fit_temperature_of(method, predictive, labels)
        found = choose_score_of_run(config, method, training.val_batches, predictive, temperature)
    decision = fit_decision(
        method,
        predictive,
        labels,
        true_positive_rate=config.true_positive_rate,
        score=config.score if found is None else found.score,
        temperature=temperature,
    )
    if accelerator.is_main_process:
        calibrated = temperature(predictive)
        if found is not None:
            training.display.say(describe_choice(found))
        if (warning := rough_threshold(decision, calibrated)) is not None:
            training.display.say(warning)
        for warning in (
            describe_overfitting(config, training.folder, describe_predictions(calibrated, labels)),
            weak_classes(calibrated, labels, training.batches.split.class_names),
            rough_temperature(len(labels)),
        ):
            if warning is not None:
                training.display.say(warning)
        if temperature.is_at_the_top:
            training.display.say(
                f"warning: the temperature is {decision.temperature:.3g}, the end of its range: by its {len(labels):,} "
                "validation samples the model is best told to be sure of nothing. Give it more data (--val-fraction), or "
                "train longer"
            )
        made = _circumstances(training, training.batches)
        is_known = False
        if source is None:
            forget_metrics(training.folder)
        elif source == training.folder:
            made = read_training(source)
            is_known = made.get("model") == file_checksum(source / MODEL_FILE)
        else:
            take_log(source, training.folder)
            made["weights_of"] = way_to(source, training.folder)
        save_method(training.folder, method)
        write_decision(training.folder, decision)
        # What was said of other weights does not hold of these.
        write_section = update_metrics if is_known else replace_metrics
        write_section(
            training.folder,
            "training",
            {
                **made,
                "model": file_checksum(training.folder / MODEL_FILE),
                **({} if choice is None else {"length_scale": to_record(choice)}),
                **({} if found is None else {"score": to_record(found)}),
                **({} if config.keep == "last" else {"kept_epochs": kept_epochs(training.folder)}),
                "validation": describe_predictions(predictive, labels),
                "validation_calibrated": describe_predictions(calibrated, labels),
            },
        )
        remove_state(training.folder)
    accelerator.wait_for_everyone()


def _fit_posterior(training: Training) -> LengthScaleChoice | None:
    """Fit the posterior of a trained method, and return the length-scale if that was left to be chosen."""
    method, loader = training.method, PlainLoader(training.batches, share=True)
    if not isinstance(method, GaussianProcessMethod):
        method.fit_posterior(loader)
        return None
    # Every process looks at the same inputs here, so that all have the same scale.
    whole = PlainLoader(training.batches, share=False)
    method.calibrate_posterior(whole)
    choice = choose_length_scale(method, whole, training.val_batches)
    method.sum_posterior(loader)
    return choice


def _circumstances(training: Training, batches: DeviceBatches) -> dict[str, Any]:
    device = training.accelerator.device
    seconds = training.position.seconds
    method = training.method
    num_images = training.steps_per_stage * training.images_per_step * training.method.num_stages
    return {
        "epochs": training.config.epochs,
        "num_parameters": sum(parameter.numel() for parameter in method.parameters()),
        "num_train": len(batches.split),
        "num_val": len(training.val_batches.split),
        "seconds": seconds,
        "images_per_second": num_images / max(seconds, 1e-9),
        "num_processes": training.accelerator.num_processes,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "lrformer": __version__,
    }
