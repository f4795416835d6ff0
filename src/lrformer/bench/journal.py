"""The record of a benchmark, whole on disk after every row, so that the same command goes on."""

from pathlib import Path
from typing import Any

from lrformer.core import ConfigError
from lrformer.training.atomic_files import check_writable, read_json, write_json

SCHEMA = 1
# What may differ between the parts of a record: `sources` says more than the commit does.
_LOOSE = ("rows", "settings", "commit")


class Journal:
    """Rows by key; opening a record of other settings, sources or device raises."""

    def __init__(
        self, path: Path | None, *, benchmark: str, where: dict[str, Any], settings: dict[str, Any]
    ) -> None:
        self.path = path
        self.record: dict[str, Any] = {
            "schema": SCHEMA,
            "benchmark": benchmark,
            **where,
            "settings": settings,
            "rows": [],
        }
        if path is None:
            return
        check_writable(path)
        if path.exists():
            self._adopt(read_json(path))

    def _adopt(self, found: Any) -> None:
        """Go on with what `found` holds, or raise if it was measured otherwise."""
        if not isinstance(found, dict) or not {"benchmark", "rows"} <= found.keys():
            raise ConfigError(f"{self.path} is no record of a benchmark; choose another --out.")
        flat_new, flat_old = (
            {**{k: v for k, v in r.items() if k not in _LOOSE}, **r.get("settings", {})}
            for r in (self.record, found)
        )
        for name, value in flat_new.items():
            if flat_old.get(name) != value:
                raise ConfigError(
                    f"{self.path} was measured with {name} {flat_old.get(name)!r}, now it is {value!r}; "
                    "figures of both do not belong in one record: choose another --out, or remove it."
                )
        self.record = {**found, **{k: v for k, v in self.record.items() if k != "rows"}}

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows so far."""
        return self.record["rows"]

    def has(self, key: str) -> bool:
        """Return whether the row of that key was measured."""
        return any(row["key"] == key for row in self.rows)

    def put(self, name: str, value: Any) -> None:
        """Keep something that belongs to all rows."""
        self.record[name] = value
        self._write()

    def add(self, row: dict[str, Any]) -> None:
        """Add a row, which has its `key`, and write the record."""
        self.rows.append(row)
        self._write()

    def _write(self) -> None:
        if self.path is not None:
            write_json(self.path, self.record)
