"""The directive ``public-names`` of the API page: docstrings of the names listed in it.

A name that the package does not export is left out; a test holds the page against the public names.
"""

import inspect

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import grace_torchrec


class PublicNames(SphinxDirective):
    """Documents the names in its content, one or more a line, from their docstrings."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Write one autodoc directive for each name and parse them."""
        lines = ["```{eval-rst}"]
        for name in " ".join(self.content).split():
            if name in grace_torchrec.__all__:
                is_function = inspect.isfunction(getattr(grace_torchrec, name))
                kind = "autofunction" if is_function else "autoclass"
                lines += [f".. {kind}:: grace_torchrec.{name}", ""]
        return self.parse_text_to_nodes("\n".join([*lines, "```"]))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("public-names", PublicNames)
    return {"parallel_read_safe": True}
