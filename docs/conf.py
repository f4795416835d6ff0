"""The site of the documentation: the pages beside this file, an API reference from the docstrings, the commands' help."""

import re

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from lrformer._version import __version__
from lrformer.cli.main import app as commands

project = "lrformer"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.mathjax", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"lrformer {__version__}"
html_show_copyright = False
exclude_patterns = ["_build"]
# Headings have the anchors that they have on GitHub.
myst_heading_anchors = 4
default_role = "code"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
napoleon_use_ivar = True
python_use_unqualified_type_names = True

CITATION = re.compile(r"\(eq\. [\w-]+\)")
# What would be markup, but for words that are meant to be bold.
MARKUP = re.compile(r"\*\*[a-z]+\*\*|[*|\\]|_(?!\w)")
WIDTH_OF_HELP = 100

held_back: dict[str, list[str]] = {}


def plain_outside_code(
    app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]
) -> None:
    """Keep what stands outside code from being read as markup: `|x|` is a norm here, and not a substitution.

    An equation that a docstring cites leads to its row in paper.md.
    """
    del app, thing, options
    literal: int | None = None  # how far the text is indented that announced a literal block
    for number, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if literal is not None and line.strip() and indent <= literal:
            literal = None
        if literal is None:
            parts = line.split("`")
            parts[::2] = [MARKUP.sub(_escaped, part) for part in parts[::2]]
            text = "`".join(parts)
            lines[number] = CITATION.sub(r":doc:`\g<0> </paper>`", text)
            if line.rstrip().endswith("::"):
                literal = indent
    if what == "property":
        held_back[name] = lines.copy()
        lines.clear()


def put_back(
    app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]
) -> None:
    """Give back what napoleon was not to see: of a property it takes what stands before a colon for a type."""
    del app, what, thing, options
    lines += held_back.pop(name, [])


def _escaped(found: re.Match[str]) -> str:
    return found[0] if len(found[0]) > 1 else f"\\{found[0]}"


class CommandHelp(SphinxDirective):
    """A section for every command, with what `--help` says."""

    def run(self) -> list[nodes.Node]:
        """Return the sections."""
        return [self._section(words) for words in _all_commands(get_command(commands), ())]

    def _section(self, words: tuple[str, ...]) -> nodes.Node:
        title = " ".join(("lrformer", *words))
        section = nodes.section(ids=[nodes.make_id(title)], names=[title])
        shown = CliRunner().invoke(
            commands, [*words, "--help"], prog_name="lrformer", terminal_width=WIDTH_OF_HELP
        )
        if shown.exit_code:
            raise self.error(f"{title} --help ends with {shown.exit_code}.")
        block = nodes.literal_block(shown.output, shown.output.strip(), language="text")
        section += [nodes.title(text=title), block]
        return section


def _all_commands(command: object, words: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return the words of every command, those of a group behind its own."""
    own = [words]
    if isinstance(command, TyperGroup):
        for name, part in command.commands.items():
            own += _all_commands(part, (*words, name))
    return own


def setup(app: Sphinx) -> None:
    """Let Sphinx know of these; napoleon, which makes markup of its own, comes between the first two."""
    app.connect("autodoc-process-docstring", plain_outside_code, priority=400)
    app.connect("autodoc-process-docstring", put_back, priority=600)
    app.add_directive("command-help", CommandHelp)
