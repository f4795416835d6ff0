"""README.md says nothing that is not true: its Python runs, its tables are the records'."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_python_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    (block,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {})
    assert (tmp_path / "runs" / "digits" / "model.safetensors").exists()
    assert "tensor" in capsys.readouterr().out


def test_tables_are_those_of_the_records(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import tables

    for page, text in tables.pages_with_tables():
        assert page.read_text(encoding="utf-8") == text, (
            f"run benchmarks/tables.py --write ({page})"
        )


def test_a_page_that_differs_from_its_records_is_named_and_written_only_when_asked(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import tables

    stale, fresh = tmp_path / "stale.md", tmp_path / "fresh.md"
    stale.write_text("old")
    fresh.write_text("same")
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    monkeypatch.setattr(tables, "pages_with_tables", lambda: [(stale, "new"), (fresh, "same")])
    monkeypatch.setattr(sys, "argv", ["tables.py"])
    with pytest.raises(SystemExit, match="--write"):
        tables.main()
    assert capsys.readouterr().out == "stale.md is not as its records make it\n"
    assert stale.read_text() == "old"
    monkeypatch.setattr(sys, "argv", ["tables.py", "--write"])
    tables.main()
    assert stale.read_text() == "new"


def test_every_command_that_the_readme_shows_exists():
    from typer.main import get_command

    from lrformer.cli.main import app

    known = get_command(app).commands
    shown = set(re.findall(r"lrformer (\w+) ", "\n".join(re.findall(r"^    .*$", README, re.M))))
    assert shown
    assert shown <= set(known)


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)#]+)\)", README))))
def test_every_link_leads_somewhere(target):
    assert (ROOT / target).exists(), target
