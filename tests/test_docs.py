"""The documentation names only what exists."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import lrformer
from lrformer.attention import ATTENTIONS, MultiheadSelfAttention
from lrformer.core import ConfigError
from lrformer.evaluation import predict_files
from lrformer.evaluation.export import export
from lrformer.methods import METHODS, list_methods
from lrformer.training import load_run
from tests.evaluation.made_run import write_image_folder, write_run

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


def test_every_method_has_its_own_score_in_the_table_of_methods():
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    table = page[page.index("| name | backbone") :].split("\n\n")[0]
    rows = [[cell.strip(" `") for cell in row.split("|")[1:-1]] for row in table.splitlines()[2:]]
    assert {row[0]: row[-1] for row in rows} == {
        name: METHODS[name].default_score for name in list_methods()
    }


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_every_link_between_pages_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http:", "https:")):
            assert (page.parent / target).exists(), target


def test_an_attention_and_a_method_of_ones_own_are_trained_and_opened_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # What is registered here is known nowhere else.
    for registry in (ATTENTIONS, METHODS):
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    text = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(compile(block, "extending.md", "exec"), names)
    run = lrformer.load("runs/laplace")
    layers = [m for m in run.method.modules() if isinstance(m, MultiheadSelfAttention)]
    assert {type(layer).__name__ for layer in layers} == {"LaplaceAttention"}
    assert type(lrformer.load("runs/logit-norm").method).__name__ == "LogitNorm"
    assert "no theorem" in str(lrformer.bounds(names["model"]))
    x = torch.randn(2, 5, layers[0].dim)
    weights = layers[0].attention_map(x)
    scores = -torch.cdist(*layers[0].project(x)[:2])
    torch.testing.assert_close(weights, scores.softmax(-1))
    del ATTENTIONS._entries["laplace"]
    with pytest.raises(ConfigError, match=r"'LaplaceConfig' is none of .* import that first"):
        lrformer.load("runs/laplace")


@pytest.mark.unhooked
def test_the_python_of_the_export_page_says_what_predict_says_of_a_photo(tmp_path):
    """The photo lies on its side, is not square, and of another size than the model's."""
    page = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert ["onnxruntime" in block for block in blocks] == [True, False]
    run = load_run(
        write_run(tmp_path / "run", write_image_folder(tmp_path / "data"), root=tmp_path)
    )
    export(run, tmp_path / "birds.onnx")
    export(run, tmp_path / "birds.pt2")
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    photo = Image.fromarray(pixels).resize((57, 33), Image.Resampling.BICUBIC)
    turned = Image.Exif()
    turned[0x0112] = 6
    photo.save(tmp_path / "new.jpg", exif=turned)
    (row,) = predict_files(run, [tmp_path / "new.jpg"])
    assert row.error is None

    report = (
        "probs = outputs['probs'].tolist()\n"
        "said = [max(probs[0]), outputs['uncertainty'].tolist()[0], outputs['in_distribution'].tolist()[0]]\n"
        "print(json.dumps(said))\n"
    )
    # The second block goes on with the images of the first.
    for hidden, block in (("torch", blocks[0]), ("timm", "\n".join(blocks))):
        code = f"import sys\nfor name in ('lrformer', '{hidden}'): sys.modules[name] = None\n{block}\n{report}"
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        printed, *_, last = done.stdout.splitlines()
        probability, uncertainty, is_known = json.loads(last)
        assert printed.split()[0] == row.label
        assert probability == pytest.approx(row.probability, abs=1e-6)
        assert uncertainty == pytest.approx(row.uncertainty, rel=1e-5)
        assert is_known == row.is_in_distribution
