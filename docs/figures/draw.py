"""The pictures of the pages: ``python docs/figures/draw.py`` writes them beside itself as SVG.

Each picture stands on a card of its own, so it reads on a light page and on a dark one; the colours
of the card follow the reader's system.  A test holds the files against this script.
"""

from pathlib import Path
from xml.sax.saxutils import escape

HERE = Path(__file__).parent
WIDTH, UNIT = 720, 26
STYLE = """
text { font: 14px system-ui, "DejaVu Sans", sans-serif; fill: #1f2430 }
.small { font-size: 12px } .bold { font-weight: 600 } .middle { text-anchor: middle } .end { text-anchor: end }
.card { fill: #fbfbf9; stroke: #d5d5d0 } .box { fill: #ffffff; stroke: #8a8f9c }
.row { fill: #dfe7f3; stroke: #5b7db1 } .sum { fill: #fde3c4; stroke: #b96f14 }
.hot { fill: #d8efdc; stroke: #3f8a4f } .off { fill: none; stroke: #a8adb8; stroke-dasharray: 4 3 }
.line { fill: none; stroke: #4a5060; stroke-width: 1.5 } .head { fill: #4a5060 }
.mark { stroke: #b3261e; stroke-width: 2 } .red { fill: #b3261e }
@media (prefers-color-scheme: dark) {
text { fill: #e6e8ee } .card { fill: #1c1f26; stroke: #3a3f4b } .box { fill: #262a33; stroke: #7d8494 }
.row { fill: #2a3d5c; stroke: #7fa3da } .sum { fill: #5a3c14; stroke: #e0a050 }
.hot { fill: #234a2c; stroke: #7cc48c } .off { stroke: #6a7080 }
.line { stroke: #b8bdc9 } .head { fill: #b8bdc9 } .mark { stroke: #ff8a80 } .red { fill: #ff8a80 }
}
""".strip()


def words(x: float, y: float, text: str, style: str = "") -> str:
    """Return a line of text; ``y`` is its baseline."""
    return f'<text x="{x}" y="{y}" class="{style}">{escape(text)}</text>'


def box(
    x: float, y: float, width: float, text: str, style: str = "box", height: float = UNIT
) -> str:
    """Return a box with a text in its middle; a line break in the text starts a second line."""
    lines = text.split("\n")
    first = y + height / 2 + 5 - 8 * (len(lines) - 1)
    told = [
        words(x + width / 2, first + 16 * n, line, "middle small") for n, line in enumerate(lines)
    ]
    shape = f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="3" class="{style}"/>'
    return shape + "".join(told if text else [])


def arrow(*points: tuple[float, float]) -> str:
    """Return a line through the points with a head at its end."""
    path = " ".join(f"{'L' if n else 'M'}{x} {y}" for n, (x, y) in enumerate(points))
    return f'<path d="{path}" class="line" marker-end="url(#head)"/>'


def picture(name: str, title: str, height: int, *parts: str) -> tuple[str, str]:
    """Return the file's name and its text."""
    head = (
        '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0L8 4L0 8z" class="head"/></marker>'
    )
    return f"{name}.svg", "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}</style><defs>{head}</defs>",
            f'<rect x="1" y="1" width="{WIDTH - 2}" height="{height - 2}" rx="8" class="card"/>',
            *parts,
            "</svg>\n",
        ]
    )


def stored_sums() -> tuple[str, str]:
    """Five bags, the table, the sums beside it, and what each bag reads."""
    stored = ("0+2", "0+3", "2+3", "0+2+3", "4+5")
    bags = (
        ("0 1 2 3", (("0+2+3", "sum"), ("1", "row")), 4),
        ("2 4 5", (("4+5", "sum"), ("2", "row")), 3),
        ("0 2 3", (("0+2+3", "sum"),), 3),
        ("4 5", (("4+5", "sum"),), 2),
        ("2 3 4", (("2+3", "sum"), ("4", "row")), 3),
    )
    parts = [words(24, 34, "table", "bold"), words(130, 34, "stored sums", "bold")]
    parts += [box(24, 46 + 30 * n, 70, f"item {n}", "row") for n in range(6)]
    parts += [box(130, 46 + 30 * n, 92, text, "sum") for n, text in enumerate(stored)]
    parts += [words(280, 34, "bag asks for", "bold"), words(400, 34, "bag reads", "bold")]
    parts.append(words(700, 34, "rows read", "bold end"))
    for n, (asked, reads, before) in enumerate(bags):
        y = 46 + 30 * n
        parts += [words(280, y + 18, asked), arrow((350, y + 13), (390, y + 13))]
        x = 400
        for text, style in reads:
            width = 92 if style == "sum" else 70
            parts.append(box(x, y, width, text if style == "sum" else f"item {text}", style))
            x += width + 8
        parts.append(words(700, y + 18, f"{len(reads)} instead of {before}", "end"))
    parts.append(words(700, 46 + 30 * 5 + 22, "8 instead of 15", "bold end"))
    title = "Five bags over six items: with five stored sums they read 8 rows instead of 15"
    return picture("stored_sums", title, 248, *parts)


def two_memories() -> tuple[str, str]:
    """Three ways to fill a small fast memory, and when a batch is done."""
    ways = (
        ("hot rows only", (("hot rows", "hot", 250),), (("cold rows", "row", 330),)),
        ("sums for the fewest reads", (("sums", "sum", 150),), (("all other rows", "row", 400),)),
        ("sums and rows in balance", (("sums", "sum", 110), ("hot rows", "hot", 130)), (("cold", "row", 236),)),
    )  # fmt: skip
    parts = [words(24, 34, "time that each memory is busy with one batch", "bold")]
    for n, (name, hbm, host) in enumerate(ways):
        y = 52 + 88 * n
        parts += [words(24, y + 14, name)]
        ends = []
        for row, (memory, pieces) in enumerate((("HBM", hbm), ("host", host))):
            x, top = 264.0, y + row * 30
            parts.append(words(256, top + 18, memory, "small end"))
            for text, style, width in pieces:
                parts.append(box(x, top, width, text, style))
                x += width
            ends.append(x)
        end = max(ends)
        parts.append(f'<line x1="{end}" x2="{end}" y1="{y - 4}" y2="{y + 60}" class="mark"/>')
        parts.append(words(end - 6, y + 74, "done", "small end red"))
    parts.append(
        words(24, 334, "Drawn, not measured. What counts is where the red line stands.", "small")
    )
    title = "A batch is done when the slower memory is done; the fewest reads need not be the soonest end"
    return picture("two_memories", title, 350, *parts)


def the_loop() -> tuple[str, str]:
    """From training to serving and back."""
    stages = (
        ("train", "stock TorchRec"),
        ("profile", "which ids meet"),
        ("plan", "what to store"),
        ("convert", "pack, schedule"),
        ("serve", "answer"),
    )
    parts = []
    for n, (name, told) in enumerate(stages):
        x = 20 + 140 * n
        parts.append(box(x, 24, 120, f"{name}\n{told}", "sum" if name == "plan" else "box", 48))
        if n:
            parts.append(arrow((x - 20, 48), (x - 3, 48)))
    parts.append(box(300, 100, 260, "new bags: recorded, planned anew", "off", 30))
    parts.append(arrow((640, 72), (640, 115), (563, 115)))
    parts.append(arrow((300, 115), (220, 115), (220, 75)))
    parts.append(box(300, 148, 260, "new rows: published, sums follow", "off", 30))
    parts.append(arrow((80, 72), (80, 163), (297, 163)))
    parts.append(arrow((560, 163), (680, 163), (680, 75)))
    title = "The loop: new bags lead to a new plan, new rows to a delta of the served model"
    return picture("the_loop", title, 196, *parts)


def what_ids_become() -> tuple[str, str]:
    """The words for hits and cuts, as shares of the ids that were asked for."""
    parts = [
        words(24, 34, "ids asked for", "bold"),
        box(24, 44, 672, "one per id of every bag: what the stock model reads"),
    ]
    parts += [words(24, 104, "become rows read", "bold")]
    x = 24
    for text, style, width in (
        ("sums read", "sum", 110),
        ("hot rows", "hot", 96),
        ("plain rows", "row", 190),
    ):
        parts.append(box(x, 114, width, text, style))
        x += width
    parts.append(box(x, 114, 696 - x, "saved reads", "off"))
    parts.append(words(24, 176, "cut = saved reads / ids asked for", "small"))
    parts.append(words(696, 176, "rows read = ids asked for - saved reads", "small end"))
    parts += [
        words(24, 214, "a row cache sees", "bold"),
        box(24, 224, 480, "hits: rows found in HBM", "hot"),
        box(504, 224, 192, "misses", "row"),
    ]
    parts.append(
        words(
            24,
            272,
            "hit rate = hits / (hits + misses): every hit is still one row read, nothing is saved",
            "small",
        )
    )
    title = "A cut takes reads away; a hit only says from which memory a read is served"
    return picture("what_ids_become", title, 290, *parts)


def two_slots() -> tuple[str, str]:
    """How a served model changes its rows between two batches."""
    parts = [words(24, 40, "slot A", "bold"), words(24, 90, "slot B", "bold")]
    parts += [
        box(90, 22, 250, "version 7: batches read it", "row"),
        box(340, 22, 130, "last readers end", "off"),
        box(470, 22, 226, "version 8 is written", "sum"),
    ]
    parts += [
        box(90, 72, 250, "version 8 is written", "sum"),
        box(340, 72, 356, "version 8: batches read it", "row"),
    ]
    parts.append('<line x1="340" x2="340" y1="14" y2="112" class="mark"/>')
    parts.append(words(346, 124, "the slots change places between two batches", "small red"))
    title = "Two slots: new rows are written into the one that no batch reads"
    return picture("two_slots", title, 140, *parts)


def ways_to_host_memory() -> tuple[str, str]:
    """Four ways to serve a row that is not in HBM."""
    ways = (
        ("managed", "the driver moves whole pages to HBM and back", (("page", "row", 110), ("page", "row", 110)), (("pages", "row", 300),)),
        ("host-mapped", "each read crosses the link, nothing is kept", (("", "off", 220),), (("rows, read in place", "row", 300),)),
        ("cached", "rows read lately are kept, found by a lookup", (("row cache", "hot", 220),), (("all rows", "row", 300),)),
        ("static sums", "what is worth it is copied or summed, once", (("sums", "sum", 110), ("hot rows", "hot", 110)), (("all rows", "row", 300),)),
    )  # fmt: skip
    parts = [words(150, 34, "HBM", "bold"), words(396, 34, "host memory", "bold")]
    for n, (name, told, hbm, host) in enumerate(ways):
        y = 48 + 58 * n
        parts.append(words(24, y + 18, name, "bold"))
        for x, pieces in ((150, hbm), (396, host)):
            for text, style, width in pieces:
                parts.append(box(x, y, width, text, style))
                x += width
        parts.append(words(150, y + 43, told, "small"))
    title = "Four ways to hold a table that is larger than HBM"
    return picture("ways_to_host_memory", title, 290, *parts)


PICTURES = (stored_sums, two_memories, the_loop, what_ids_become, two_slots, ways_to_host_memory)


def main() -> None:
    """Write every picture."""
    for draw in PICTURES:
        name, text = draw()
        (HERE / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
