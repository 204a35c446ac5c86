"""The directive ``public-names`` of the API page: docstrings of the names listed in it.

A name that the package does not export (yet) is left out; :func:`missing` tells which public names
no list has.
"""

import inspect

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import grace_torchrec

LISTED = "grace_listed_names"


class PublicNames(SphinxDirective):
    """Documents the names in its content, one or more a line, from their docstrings."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Write one autodoc directive for each name and parse them."""
        lines = ["```{eval-rst}"]
        for name in " ".join(self.content).split():
            if name not in grace_torchrec.__all__:
                continue
            getattr(self.env, LISTED).add(name)
            found = getattr(grace_torchrec, name)
            kind = "autofunction" if inspect.isfunction(found) else "autoclass"
            lines += [f".. {kind}:: grace_torchrec.{name}", ""]
        return self.parse_text_to_nodes("\n".join([*lines, "```"]))


def forget(app: Sphinx, env: object, names: list[str]) -> None:
    """Start with no names."""
    setattr(env, LISTED, set())


def check(app: Sphinx, env: object) -> None:
    """Refuse an API page that lacks a public name.

    Raises:
        ValueError: it does; the message names them.
    """
    missing = sorted(set(grace_torchrec.__all__) - getattr(env, LISTED))
    if missing:
        raise ValueError(f"docs/api.md lists no {', '.join(missing)}")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("public-names", PublicNames)
    app.connect("env-before-read-docs", lambda app, env, docnames: forget(app, env, docnames))
    app.connect("env-check-consistency", check)
    return {"parallel_read_safe": False}
