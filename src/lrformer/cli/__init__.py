"""The command `lrformer`. Every command is a file of its own and imports what it needs when it runs."""

from lrformer.cli.main import main

__all__ = ["main"]
