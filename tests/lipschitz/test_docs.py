"""The Python of docs/lipschitz.md runs, so every counterexample that a reader finds there is one."""

import re
from pathlib import Path

import torch

PAGE = Path(__file__).parents[2] / "docs" / "lipschitz.md"


def test_every_block_of_the_lipschitz_page_runs():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) >= 12
    before = torch.get_default_dtype()
    namespace = {}
    try:
        for number, block in enumerate(blocks):
            exec(compile(block, f"{PAGE.name}, block {number}", "exec"), namespace)
    finally:
        torch.set_default_dtype(before)


def test_every_theorem_that_the_code_cites_is_on_the_page():
    page = PAGE.read_text(encoding="utf-8")
    sources = (PAGE.parents[1] / "src" / "lrformer" / "lipschitz").glob("*.py")
    cited = {
        number
        for source in sources
        for number in re.findall(r"[Tt]heorem (\d+)", source.read_text(encoding="utf-8"))
    }
    assert cited
    assert {number for number in cited if not re.search(rf"heorem {number}\b", page)} == set()
