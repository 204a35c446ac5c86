"""A written profile in words: what it holds, and what was left out where something was."""

from grace_torchrec.views.profile_text import profile_lines

WHOLE = {
    "profile": "p", "table": "t_item", "features": ["item", "seen"], "bags": 12_345, "ids": 100_000,
    "items": 5_000, "pooling_factor": 8.1004, "fingerprint": "abc", "bags_read": 12_345,
    "bags_capped": 0, "ids_dropped": 0, "pairs_dropped": 0, "notes": [],
    "lines_skipped": 0, "first_skipped": "", "names": "",
}  # fmt: skip


def test_a_whole_profile_is_three_lines_with_numbers_for_people():
    assert list(profile_lines(WHOLE)) == [
        "wrote p: table t_item, read by item, seen",
        "12,345 bags of 8.1 ids on average, 5,000 items, 100,000 ids",
        "fingerprint abc",
    ]


def test_what_was_left_out_is_said():
    cut = {
        **WHOLE,
        "bags_read": 99_999,
        "bags_capped": 7,
        "ids_dropped": 1_234,
        "notes": ["by name"],
    }
    cut |= {"lines_skipped": 2, "first_skipped": "log:3: no item", "names": "items.txt"}
    shown = "\n".join(profile_lines(cut))
    assert "sampled from 99,999 bags" in shown
    assert "7 bags cut to a sample of their ids" in shown
    assert "1,234 ids left out" in shown
    assert "pairs" not in shown
    assert "2 bad lines skipped, the first: log:3: no item" in shown
    assert "wrote items.txt: the name of each row, one a line" in shown
    assert "note: by name" in shown
