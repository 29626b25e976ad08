"""One line of JSON that every reader takes."""

import json

from hypothesis import given
from hypothesis import strategies as st

from vime_agents.storage.exports.json_text import json_line

ANY_TEXT = st.text(st.characters() | st.sampled_from("\\ud8\ud800\udc00\udfff\x00"))


@given(ANY_TEXT)
def test_text_that_is_unicode_comes_back_and_the_rest_is_written_out(text):
    """Against Python's own way to write out what UTF-8 cannot hold; json joins two halves that fit."""
    whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    expected = whole.encode("utf-8", "backslashreplace").decode()
    line = json_line({"text": text})
    assert line.isascii()
    assert json.loads(line) == {"text": expected}


def test_a_name_and_a_backslash_before_it():
    assert json.loads(json_line({"\udfff": "\\\ud800\\ud800"})) == {"\\udfff": "\\\\ud800\\ud800"}
    assert json.loads(json_line("😀\ud83d")) == "😀\\ud83d"
