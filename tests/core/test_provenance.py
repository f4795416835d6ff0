"""A record says which sources made it."""

import shutil
import subprocess
from pathlib import Path

import pytest

from lrformer.core import provenance
from lrformer.core.provenance import checkout_commit, source_digest


@pytest.fixture
def package(tmp_path, monkeypatch) -> Path:
    """A package of two rooms in place of ours."""
    folder = tmp_path / "package"
    for name in ("a/one.py", "b/two.py", "__init__.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    monkeypatch.setattr(provenance, "_package", lambda: folder)
    return folder


def test_the_digest_changes_with_a_file_of_its_rooms_and_with_its_name(package):
    whole, room = source_digest(), source_digest(["a"])
    (package / "b" / "two.py").write_text("changed")
    assert source_digest() != whole
    assert source_digest(["a"]) == room
    (package / "a" / "one.py").rename(package / "a" / "other.py")
    assert source_digest(["a"]) != room


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_commit_is_that_of_a_checkout_which_holds_the_package(package):
    def git(*arguments: str) -> str:
        names = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run(
            ["git", "-C", str(package), *names, *arguments],
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout.strip()

    assert checkout_commit() is None
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "somebody's")
    assert checkout_commit() is None  # a folder inside somebody's checkout, not part of it
    git("add", ".")
    git("commit", "-qm", "the package")
    assert checkout_commit() == git("rev-parse", "HEAD")
