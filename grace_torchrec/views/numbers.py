"""Numbers as people read them."""


def bytes_text(num_bytes: float) -> str:
    """Return a size with a binary unit.

    >>> bytes_text(1536)
    '1.5 KiB'
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(num_bytes) < 1024:
            return f"{num_bytes:,.0f} {unit}" if unit == "B" else f"{num_bytes:,.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:,.1f} TiB"


def seconds_text(seconds: float) -> str:
    """Return a time with three digits, in the unit that leaves one to three before the point.

    >>> seconds_text(0.00123), seconds_text(0.0)
    ('1.23 ms', '0')
    """
    if seconds == 0:
        return "0"
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6), ("ns", 1e9)):
        if abs(seconds) * scale >= 1 or unit == "ns":
            break
    value = abs(seconds) * scale
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{seconds * scale:,.{digits}f} {unit}"


def share_text(share: float) -> str:
    """Return a share in percent.

    >>> share_text(0.1234)
    '12.3%'
    """
    return f"{share:.1%}"


def known(value: float | None, text: str = ",") -> str:
    """Return a number in a format, a dash where it is not known.

    >>> known(1234), known(None)
    ('1,234', '-')
    """
    return "-" if value is None else format(value, text)
