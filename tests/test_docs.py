"""The documentation names only what exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAPER = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
SOURCES = sorted((ROOT / "src").rglob("*.py"))


def test_every_equation_that_a_docstring_cites_is_in_the_paper_page():
    labels = set(re.findall(r"^\| `([^`]+)` \|", PAPER, flags=re.MULTILINE))
    cited = {
        (source.name, label)
        for source in SOURCES
        for label in re.findall(r"\(eq\. ([^)]+)\)", source.read_text(encoding="utf-8"))
    }
    assert labels
    assert cited
    assert {(name, label) for name, label in cited if label not in labels} == set()


def test_every_file_that_the_paper_page_names_exists():
    named = re.findall(r"`((?:[a-z_0-9]+/)+[a-z_0-9]+\.(?:py|json))`", PAPER)
    assert named
    missing = [
        name
        for name in named
        if not (ROOT / name).exists() and not (ROOT / "src" / "lrformer" / name).exists()
    ]
    assert missing == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_every_link_between_pages_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http:", "https:")):
            assert (page.parent / target).exists(), target
