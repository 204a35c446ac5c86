"""Texts of a plan file are shown on one line, whoever wrote them."""

import pytest

from grace_torchrec.errors import GraceError
from grace_torchrec.plans.table_spec import TableSpec
from grace_torchrec.plans.texts import MOST_LETTERS, check_texts, names

BAD = ["a\nb", "\x1b[2J", "\r", "\0", "\ud800", "\u2028", "\u202e", "x" * (MOST_LETTERS + 1)]


@pytest.mark.parametrize("text", BAD)
@pytest.mark.parametrize(
    "put", [lambda t: t, lambda t: [[t]], lambda t: {"a": {"b": t}}, lambda t: {t: 1}]
)
def test_a_text_is_found_wherever_it_is(text, put):
    with pytest.raises(GraceError) as error:
        check_texts(put(text), "here")
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 600


def test_letters_of_any_language_are_texts():
    check_texts({"t_größe": ["表", "a b", ""], "n": [1, None, True, 2.5]}, "here")


@pytest.mark.parametrize("text", BAD)
def test_a_table_of_a_model_has_such_a_name_too(text):
    for parts in ((text, "t", ("f",)), ("m", text, ("f",)), ("m", "t", ("f", text))):
        module, name, features = parts
        with pytest.raises(GraceError, match="on one line") as error:
            TableSpec(module, name, 9, 4, "fp32", "sum", features, False)
        assert str(error.value).isprintable()


def test_names_in_messages_are_few_and_short():
    assert names([]) == ""
    assert names(["b", "a\n"]) == "'a\\n', b"
    assert len(names([str(n) * 900 for n in range(1000)])) < 3000
