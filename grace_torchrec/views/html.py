"""HTML: elements as text that escapes what it is given, so that no name can become markup.

Flow: values -> *Html* -> report.
"""

from collections.abc import Iterable
from html import escape

VOID = frozenset({"br", "hr", "input", "meta"})
SHAPES = frozenset({"path", "rect", "line", "circle"})


class Html(str):
    """Text that is markup already; plain ``str`` is escaped wherever it is put into an element."""

    __slots__ = ()


Child = str | Html | None | Iterable["Child"]


def element(tag: str, /, *children: Child, **attributes: object) -> Html:
    """Return one element.

    Args:
        tag: Name of the element.
        children: Texts (escaped), elements, None (nothing), or iterables of these.
        attributes: ``class_`` becomes ``class``, other underscores become hyphens; None and False
            leave an attribute out, True gives it without a value.

    >>> element("p", "1 < 2", class_="note")
    '<p class="note">1 &lt; 2</p>'
    """
    told = "".join(
        f" {_attribute(key)}" + ("" if value is True else f'="{escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if tag in VOID:
        return Html(f"<{tag}{told}>")
    if tag in SHAPES and not children:
        return Html(f"<{tag}{told}/>")
    return Html(f"<{tag}{told}>{join(children)}</{tag}>")


def join(children: Iterable[Child]) -> Html:
    """Return several children one after the other, escaped where they are plain text."""
    parts = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, Html):
            parts.append(str(child))
        elif isinstance(child, str):
            parts.append(escape(child))
        else:
            parts.append(join(child))
    return Html("".join(parts))


def _attribute(key: str) -> str:
    """Return the attribute that a Python keyword stands for; SVG's viewBox keeps its capital."""
    fixed = {"viewbox": "viewBox", "preserveaspectratio": "preserveAspectRatio"}
    return fixed.get(key, key.rstrip("_").replace("_", "-"))
