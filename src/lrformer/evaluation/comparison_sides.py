"""What a comparison is made of: two sides, each the kept evaluations of one run or of several seeds, and their pairs."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lrformer.core import ConfigError, from_record
from lrformer.data import DATASETS, SEVERITIES, list_corruptions
from lrformer.data.folder_layout import OOD_PREFIX
from lrformer.evaluation.conventions import EvaluationConfig
from lrformer.evaluation.made_sets import MADE
from lrformer.evaluation.run_data import ALL_CORRUPTIONS, OTHER_CLASSES
from lrformer.evaluation.run_evaluation import TEMPERATURE, is_without_temperature
from lrformer.evaluation.scores import SECTION, EvaluatedSet, Scores, is_evaluated, load_scores
from lrformer.evaluation.seeds import check_one_experiment
from lrformer.training import RunConfig
from lrformer.training.run_config import CONFIG_FILE, check_there
from lrformer.training.seed_folders import seed_folders

KEPT = " (another --out FOLDER keeps what is there)"

Place = str | os.PathLike[str]


@dataclass(frozen=True, kw_only=True, eq=False)
class Side:
    """One of the two: its places as they were named, and the evaluations in them.

    Attributes:
        seeds: of each evaluation; None for what is no run's.
    """

    places: tuple[str, ...]
    folders: tuple[Path, ...]
    scores: tuple[Scores, ...]
    seeds: tuple[int | None, ...]

    @property
    def name(self) -> str:
        """Return the places in one line."""
        return ", ".join(self.places)

    def folder_of(self, seed: int) -> Path:
        """Return the folder of one seed."""
        return self.folders[self.seeds.index(seed)]


def read_side(places: Place | Sequence[Place]) -> Side:
    """Return the evaluations that are kept in runs, in folders of seeds, or where `evaluate --out` put them."""
    named = [places] if isinstance(places, str | os.PathLike) else list(places)
    if not named:
        raise ConfigError("nothing to compare with: name one run, or several seeds, for each side.")
    folders = [folder for place in named for folder in _folders(Path(place))]
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise ConfigError(f"a run is named twice ({', '.join(map(str, folders))}); one run is one seed.")  # fmt: skip
    missing = [str(folder) for folder in folders if not is_evaluated(folder)]
    if missing:
        raise ConfigError(
            f"{', '.join(missing)} {'has' if len(missing) == 1 else 'have'} not been evaluated, and a comparison reads what "
            f"evaluate keeps. Run `lrformer evaluate {' '.join(map(str, named))}` first."
        )
    scores = [load_scores(folder) for folder in folders]
    if len(folders) > 1:
        _check_seeds(folders, scores)
    return Side(
        places=tuple(map(str, named)),
        folders=tuple(folders),
        scores=tuple(scores),
        seeds=tuple(entry.about.get("seed") for entry in scores),
    )


def _folders(place: Path) -> list[Path]:
    """Return the evaluations that a place stands for: its own, or those of its seeds."""
    if (place / CONFIG_FILE).is_file() or is_evaluated(place):
        return [place]
    if not (inside := seed_folders(place)):
        check_there(place)
    return inside


def _check_seeds(folders: Sequence[Path], scores: Sequence[Scores]) -> None:
    """Raise unless several evaluations of one side are those of seeds of one experiment."""
    configs = {}
    for folder, entry in zip(folders, scores, strict=True):
        if "config" not in entry.about:
            raise ConfigError(
                f"{folder} is not the evaluation of a run, so that nothing is known of its seed; compare it by itself."
            )
        try:
            configs[str(folder)] = from_record(RunConfig, entry.about["config"])
        except (ConfigError, TypeError) as error:
            raise ConfigError(
                f"{folder}: what the section '{SECTION}' of its metrics says of the run cannot be read ({error}) Evaluate "
                "again."
            ) from error
    check_one_experiment(configs, way_out="compare each by itself")


def check_sides(ours: Side, theirs: Side) -> None:
    """Raise unless all evaluations are of the same test data and unknown sets, made with the same settings.

    Every evaluation is held against the first; of what was measured, the figures do not say whether it is the same.
    """
    both = {folder.resolve() for folder in ours.folders} & {f.resolve() for f in theirs.folders}
    if both:
        raise ConfigError(f"{both.pop()} is on both sides; compare two runs.")
    here, first = ours.folders[0], ours.scores[0]
    for side in (ours, theirs):
        for there, second in zip(side.folders, side.scores, strict=True):
            _check_alike((here, first), (there, second), command=_command(side, like=first))


def _check_alike(ours: tuple[Path, Scores], theirs: tuple[Path, Scores], *, command: str) -> None:
    """Raise unless two evaluations are of the same; `command` makes the second like the first."""
    (here, first), (there, second) = ours, theirs
    again = f"`{command}` evaluates it as {here} was{KEPT}"
    if not _are_same_test(first, second):
        raise ConfigError(
            f"{there} was evaluated on other test data than {here} ({_describe(second)} and {_describe(first)}). Evaluate "
            f"both on the same: `{command} --data PLACE`{KEPT}."
        )
    if _unknown(first) != _unknown(second):
        raise ConfigError(
            f"{there} was evaluated on other unknown or corrupted sets than {here} ({_names(second)}; {_names(first)}); "
            f"{again}."
        )
    for name, option in (("num_bins", "--bins"), ("threshold", "--threshold"), ("coverages", "coverages")):  # fmt: skip
        one, other = getattr(first.config, name), getattr(second.config, name)
        if one != other:
            raise ConfigError(
                f"{there} was evaluated with other settings than {here} ({option} is {other} there and {one} here); {again}."
            )
    is_run = TEMPERATURE in first.about and TEMPERATURE in second.about
    if is_run and is_without_temperature(first) != is_without_temperature(second):
        without, has = (here, there) if is_without_temperature(first) else (there, here)
        raise ConfigError(
            f"{without} was evaluated without its temperature, and {has} with it; {again}."
        )


def _are_same_test(first: Scores, second: Scores) -> bool:
    """Return whether two test sets are the same by name, classes and their samples; arrays have no names to compare."""
    counts = [[entry.count for entry in scores.classes] for scores in (first, second)]
    if first.of_role("id")[0].num_samples != second.of_role("id")[0].num_samples:
        return False
    if first.num_classes != second.num_classes or (all(counts) and counts[0] != counts[1]):
        return False
    if "run" not in first.about or "run" not in second.about:
        return True
    names = [[entry.name for entry in scores.classes] for scores in (first, second)]
    return first.test_set == second.test_set and (not all(names) or names[0] == names[1])


def _describe(scores: Scores) -> str:
    samples = f"{scores.of_role('id')[0].num_samples:,} samples of {scores.num_classes} classes"
    return f"{scores.test_set}, {samples}"


def _unknown(scores: Scores) -> set[EvaluatedSet]:
    """Return every set beside the test set."""
    return {entry for entry in scores.sets if entry.role not in ("id", "mean")}


def _names(scores: Scores) -> str:
    sets = [f"{entry.name} ({entry.num_samples:,})" for entry in scores.sets if entry in _unknown(scores)]  # fmt: skip
    return ", ".join(sets) or "none"


def _command(side: Side, *, like: Scores) -> str:
    """Return the command that evaluates a side on the sets and with the settings of another evaluation.

    A folder is known by its name alone, so that the user has to say where it lies.
    """
    is_run = all((folder / CONFIG_FILE).is_file() for folder in side.folders)
    # Figures that lie elsewhere do not say where their run is.
    words = ["lrformer evaluate", *(side.places if is_run else ["RUN", "--out", *side.places[:1]])]
    for entry in like.of_role("ood"):
        if entry.name in DATASETS or entry.name == OTHER_CLASSES:
            words.append(f"--ood {entry.name}")
        elif entry.name.startswith(OOD_PREFIX):
            words.append(f"--ood PLACE:{entry.name}")
        else:
            words.append(f"--ood PLACE/{entry.name}")
    if like.of_role("made"):
        words.append(f"--ood {MADE}")
    words += [f"--corruptions {name}" for name in _corruptions(like)]
    usual = EvaluationConfig()
    if like.config.num_bins != usual.num_bins:
        words.append(f"--bins {like.config.num_bins}")
    if like.config.threshold != usual.threshold:
        words.append(f"--threshold {like.config.threshold:g}")
    if is_without_temperature(like):
        words.append("--no-temperature")
    return " ".join(words)


def _corruptions(scores: Scores) -> list[str]:
    """Return the corruptions as the command line takes them, the shortest way."""
    severities: dict[str, list[str]] = {}
    for entry in scores.of_role("corrupted"):
        kind, _, severity = entry.name.rpartition("-")
        severities.setdefault(kind, []).append(severity)
    whole = [kind for kind, found in severities.items() if len(found) == len(SEVERITIES)]
    if len(whole) == len(list_corruptions()):
        return [ALL_CORRUPTIONS]
    parts = [f"{kind}:{s}" for kind, found in severities.items() if kind not in whole for s in found]  # fmt: skip
    return [*whole, *parts]


def common_seeds(ours: Side, theirs: Side) -> tuple[int, ...]:
    """Return the seeds that both sides have, or none where one run stands on each.

    Raises:
        ConfigError: when several runs are named that make less than two pairs.
    """
    if len(ours.folders) == len(theirs.folders) == 1:
        return ()
    common = tuple(seed for seed in ours.seeds if seed is not None and seed in theirs.seeds)
    if len(common) >= 2:
        return tuple(sorted(common))
    pair = (ours.folders[0], theirs.folders[0])
    if common:
        pair = (ours.folder_of(common[0]), theirs.folder_of(common[0]))
    raise ConfigError(
        f"{ours.name} has {_seeds(ours)} and {theirs.name} {_seeds(theirs)}: over seeds, both need at least two that are the "
        f"same. Train the others, or compare one run of each: `lrformer compare {pair[0]} --with {pair[1]}`."
    )


def _seeds(side: Side) -> str:
    listed = ", ".join("unknown" if seed is None else str(seed) for seed in side.seeds)
    return f"the seed{'' if len(side.seeds) == 1 else 's'} {listed}"
