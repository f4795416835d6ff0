"""The packages that interop bridges are imported when they are needed, not before."""

import subprocess
import sys


def test_importing_interop_imports_neither_timm_nor_transformers() -> None:
    code = (
        "import sys, lrformer.interop; "
        "print([name for name in ('timm', 'transformers', 'safetensors') if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
