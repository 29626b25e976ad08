"""Arguments that tools are tried with."""

import json

import pytest

from vime_agents.checking.tool_use import hostile_arguments, sample

ROOT = {"$defs": {"Colour": {"enum": ["red", "blue"]}}}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string"}, "a"),
        ({"type": "integer", "minimum": 5}, 5),
        ({"type": "boolean"}, True),
        ({"type": "string", "default": "x"}, "x"),
        ({"$ref": "#/$defs/Colour"}, "red"),
        ({"anyOf": [{"type": "null"}, {"type": "array"}]}, []),
        ({"type": "object", "properties": {"n": {"type": "number"}}, "required": ["n"]}, {"n": 1.0}),
        ({"type": "null"}, None),
    ],
)
def test_a_sample_fits_its_schema(schema, value):
    assert sample(schema, ROOT) == value


def test_each_parameter_gets_wrong_types_and_hostile_values_while_the_others_are_good():
    parameters = {
        "type": "object",
        "properties": {"text": {"type": "string"}, "count": {"type": "integer"}},
        "required": ["text", "count"],
    }
    found = dict(hostile_arguments(parameters, huge=100))
    assert json.loads(found["text = NUL"]) == {"text": "a\x00b", "count": 1}
    assert json.loads(found["text = a lone surrogate"]) == {"text": "\ud800", "count": 1}
    assert json.loads(found["text = 100 characters"])["text"] == "a" * 100
    assert json.loads(found["count = 10^30"]) == {"text": "a", "count": 10**30}
    with pytest.raises(json.JSONDecodeError):
        json.loads(found["arguments that are cut off"])
