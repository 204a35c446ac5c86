"""No text can become markup, whatever a table is called."""

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from grace_torchrec.views.html import Html, element, join


class Reader(HTMLParser):
    """What a browser would find: elements, attributes, text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.text += data


texts = st.text(st.characters(exclude_characters="\r\0", exclude_categories=["Cs"]), min_size=1)


@given(texts)
def test_a_text_comes_back_as_that_text_and_adds_no_element(text):
    found = Reader(element("p", text, title=text))
    assert found.tags == ["p"]
    assert found.text == text
    assert found.attributes == [("title", text)]


def test_elements_nest_and_nothing_is_left_out_that_was_given():
    inner = element("b", "bold")
    made = element("p", "a ", inner, None, [element("i", "x"), " z"], hidden=True, id=None)
    assert made == "<p hidden>a <b>bold</b><i>x</i> z</p>"


def test_names_of_python_become_names_of_html():
    assert element("a", class_="x", data_cell=1, viewbox="0 0 1 1") == (
        '<a class="x" data-cell="1" viewBox="0 0 1 1"></a>'
    )
    assert element("br") == "<br>"
    assert element("rect", x=0) == '<rect x="0"/>'
    assert join(["<", Html("<i>")]) == "&lt;<i>"
