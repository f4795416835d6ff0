import json

import torch

from lrformer.cli.bounds_command import run_bounds
from lrformer.models import create_model


def test_the_command_prints_a_table_and_writes_record_and_picture(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    model = create_model("lrformer_digits", depth=1)
    record, picture = tmp_path / "bounds.json", tmp_path / "bounds.png"
    report = run_bounds(
        model, torch.randn(2, 1, 8, 8), json_path=record, figure_path=picture, num_steps=2
    )
    printed = capsys.readouterr().out
    assert "blocks.0.attn" in printed
    assert "vacuous" in printed
    assert json.loads(record.read_text())["model"] == report.model
    assert picture.stat().st_size > 1000
