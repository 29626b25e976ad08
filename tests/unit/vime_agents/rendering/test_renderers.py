"""Renderers against real tokenizers: what is appended continues what was sampled, token for token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vime_agents.errors import ConfigError
from vime_agents.messages import Message, assistant, system, tool_call, tool_result, user
from vime_agents.rendering.chat_template import ChatTemplateRenderer
from vime_agents.rendering.load import make_renderer
from vime_agents.rendering.renderer import Renderer
from vime_agents.rendering.text import TextRenderer
from vime_agents.rendering.tokenizer import load_tokenizer
from vime_agents.token_log import Piece
from vime_trainers.models.tiny import ensure_tiny_qwen3

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}
]
CALL = tool_call("add", {"a": 1, "b": 2}, "call_0")


@pytest.fixture(scope="module")
def folder() -> Path:
    return ensure_tiny_qwen3()


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    return load_tokenizer(str(folder))


def ids_of(pieces: list[Piece] | None) -> list[int]:
    assert pieces is not None
    return [i for p in pieces for i in p.token_ids]


def sampled(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def reference(tokenizer: Any, messages: list[Message], tools: Any = None) -> list[int]:
    """The template's own rendering of the whole conversation, in one go."""
    plain = [dict(m) for m in messages]
    text = tokenizer.apply_chat_template(plain, tools=tools, add_generation_prompt=True, tokenize=False)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("name", ["auto", "qwen3"])
def test_a_prompt_is_the_templates_own_and_every_token_has_its_source(
    folder: Path, tokenizer: Any, name: str
) -> None:
    renderer = make_renderer(str(folder), renderer=name)
    messages = [system("Be brief."), user("What is 1 + 2?")]
    pieces = renderer.initial(messages, TOOLS)
    assert ids_of(pieces) == reference(tokenizer, messages, TOOLS)
    joined = dict.fromkeys(("system", "user", "template"), "")
    for piece in pieces:
        joined[piece.source] += tokenizer.decode(list(piece.token_ids))
    assert "Be brief." in joined["system"]
    assert "What is 1 + 2?" in joined["user"]
    assert "assistant" in joined["template"]


@pytest.mark.parametrize("name", ["auto", "qwen3"])
def test_a_tool_turn_extends_the_sampled_ids_and_equals_the_templates_rendering(
    folder: Path, tokenizer: Any, name: str
) -> None:
    """Plan 64."""
    renderer = make_renderer(str(folder), renderer=name)
    question = [user("1 + 2?")]
    prompt = ids_of(renderer.initial(question, TOOLS))
    reply = sampled(
        tokenizer,
        '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call><|im_end|>',
    )
    message = renderer.parse(reply)
    assert [c["function"] for c in message["tool_calls"]] == [
        {"name": "add", "arguments": '{"a": 1, "b": 2}'}
    ]
    answer = tool_result("3", message["tool_calls"][0])
    extension = ids_of(renderer.extend(prompt + reply, [answer], TOOLS))
    history = [
        *question,
        assistant("", [CALL | {"function": {"name": "add", "arguments": {"a": 1, "b": 2}}}]),
    ]
    assert prompt + reply + extension == reference(tokenizer, [*history, answer], TOOLS)


def test_a_reply_that_was_cut_is_closed_by_the_template(folder: Path, tokenizer: Any) -> None:
    renderer = make_renderer(str(folder))
    prompt = ids_of(renderer.initial([user("hi")], ()))
    cut = sampled(tokenizer, "I was cu")
    pieces = renderer.extend(prompt + cut, [user("go on")], ())
    assert pieces is not None
    assert tokenizer.decode(list(pieces[0].token_ids)) == "<|im_end|>\n"
    assert pieces[0].source == "template"
    whole = [user("hi"), assistant("I was cu"), user("go on")]
    assert prompt + cut + ids_of(pieces) == reference(tokenizer, whole)


def test_parallel_tool_results_share_a_turn_as_the_template_has_it(folder: Path, tokenizer: Any) -> None:
    renderer = make_renderer(str(folder))
    prompt = ids_of(renderer.initial([user("hi")], TOOLS))
    reply = sampled(tokenizer, "ok<|im_end|>")
    results: list[Message] = [tool_result("3", CALL), tool_result("4", CALL)]
    extension = ids_of(renderer.extend(prompt + reply, results, TOOLS))
    whole = [user("hi"), assistant("ok"), *results]
    assert prompt + reply + extension == reference(tokenizer, whole, TOOLS)
    assert tokenizer.decode(extension).count("<|im_start|>user") == 1


def test_a_template_that_rewrites_history_does_not_extend(tokenizer: Any, folder: Path) -> None:
    """Plan 64."""
    rewriting = load_tokenizer(str(folder))
    rewriting.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
        "{% if not loop.last %} (old){% endif %}<|im_end|>\n{% endfor %}"
    )
    renderer = ChatTemplateRenderer(rewriting)
    prompt = ids_of(renderer.initial([user("hi")], ()))
    reply = sampled(tokenizer, "yes<|im_end|>")
    assert renderer.extend(prompt + reply, [user("and?")], ()) is None


DROPS_THOUGHTS = """
{%- set query = namespace(last=0) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set query.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
    {%- set said = m.content %}
    {%- if m.role == 'assistant' and loop.index0 < query.last %}
        {%- set said = m.content.split('</think>')[-1].lstrip('\n') %}
    {%- endif %}
    {{- '<|im_start|>' + m.role + '\n' + said + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""
"""As Qwen3's does: thoughts last until the user speaks again, and results of tools are no such speaking."""


def audit(renderer: Renderer, tokenizer: Any, turns: list[tuple[str, list[Message]]]) -> list[str]:
    """Of each (reply, what the env answers): whether the next prompt extends the tokens, or forks."""
    messages: list[Message] = [user("1 + 2?")]
    held, found = ids_of(renderer.initial(messages, ())), []
    for reply, new in turns:
        held += sampled(tokenizer, reply + "<|im_end|>")
        messages += [assistant(reply), *new]
        pieces = renderer.extend(held, new, ())
        found.append("fork" if pieces is None else "exact")
        held = ids_of(renderer.initial(messages, ())) if pieces is None else held + ids_of(pieces)
        if isinstance(renderer, ChatTemplateRenderer):
            assert tokenizer.decode(held) == tokenizer.decode(reference(renderer._tokenizer, messages))
    return found


THINKING: list[tuple[str, list[Message]]] = [
    ("<think>\nadd them\n</think>\n\nI call it.", [tool_result("3", CALL), tool_result("3", CALL)]),
    ("It is 3.", [user("sure?")]),  # the thought of the turn before goes
    ("Yes.", [user("really?")]),  # none is left
    ("<think>\nhm\n</think>\n\nYes.", [user("why?")]),
]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (None, ["exact"] * 4),
        (DROPS_THOUGHTS, ["exact", "fork", "exact", "fork"]),
        (DROPS_THOUGHTS.replace("loop.index0 < query.last", "true"), ["fork", "exact", "exact", "fork"]),
    ],
)
def test_turns_are_exact_unless_the_template_drops_a_thought(
    folder: Path, tokenizer: Any, template: str | None, expected: list[str]
) -> None:
    """Plan 64: and either way the prompt is the one that the template would write."""
    dropping = load_tokenizer(str(folder))
    dropping.chat_template = template or tokenizer.chat_template
    assert audit(ChatTemplateRenderer(dropping), tokenizer, THINKING) == expected


def test_the_package_says_the_same_of_qwen3(folder: Path, tokenizer: Any) -> None:
    """Plan 64: after a user's message it never extends, whether or not there was a thought to drop."""
    found = audit(make_renderer(str(folder), renderer="qwen3"), tokenizer, THINKING)
    assert found == ["exact", "fork", "fork", "fork"]


@pytest.mark.integration
def test_turns_of_smollm2_are_exact_to_the_newline_after_each(smollm2: Path) -> None:
    """Plan 64."""
    tokenizer = load_tokenizer(str(smollm2))
    assert audit(ChatTemplateRenderer(tokenizer), tokenizer, THINKING) == ["exact"] * 4


@given(turns=st.lists(st.tuples(st.text(max_size=20), st.text(max_size=20)), min_size=1, max_size=4))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_conversation_rendered_step_by_step_decodes_to_the_whole_one(
    folder: Path, tokenizer: Any, turns: list[tuple[str, str]]
) -> None:
    """The token ids may differ from a re-tokenisation (that is the point); the text may not."""
    renderer = ChatTemplateRenderer(tokenizer)
    held: list[int] = []
    messages: list[Message] = []
    for question, reply in turns:
        new = [user(question)]
        pieces = renderer.extend(held, new, ()) if held else renderer.initial(new, ())
        held = [*held, *ids_of(pieces)]
        messages.extend(new)
        assert tokenizer.decode(held) == tokenizer.decode(reference(tokenizer, messages))
        held = [*held, *sampled(tokenizer, reply), tokenizer.eos_token_id]
        messages.append(assistant(reply))


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("no call at all", []),
        ("<tool_call>{broken</tool_call>", [("", "{broken")]),
        ('<tool_call>{"name": 5}</tool_call>', [("", '{"name": 5}')]),
        ('<tool_call>{"name": "add", "arguments": [1]}</tool_call>', [("add", "[1]")]),
        ('<tool_call>{"name": "add"}', [("add", "{}")]),
        (
            '<tool_call>{"name": "add", "arguments": {}}</tool_call><tool_call>{"name": "x"}</tool_call>',
            [("add", "{}"), ("x", "{}")],
        ),
    ],
)
def test_whatever_a_model_says_is_parsed_and_nothing_is_lost(
    tokenizer: Any, text: str, calls: list[tuple[str, str]]
) -> None:
    message = ChatTemplateRenderer(tokenizer).parse(sampled(tokenizer, text))
    found = [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls", [])]
    assert found == calls


def test_text_is_concatenated_and_a_token_across_a_boundary_belongs_to_the_earlier_message(
    tokenizer: Any,
) -> None:
    renderer: Renderer = TextRenderer(tokenizer)
    messages = [system("1+1=2\n"), user("2+2="), user("")]
    pieces = renderer.initial(messages, ())
    assert ids_of(pieces) == sampled(tokenizer, "1+1=2\n2+2=")
    assert [p.source for p in pieces] == ["system", "user", "user"]
    extension = renderer.extend(ids_of(pieces), [{"role": "tool", "content": " = 4"}], ())
    assert extension is not None
    assert ids_of(extension) == sampled(tokenizer, " = 4")
    assert renderer.parse(sampled(tokenizer, "4\n")) == assistant("4\n")


def test_a_wrong_folder_style_or_name_is_an_error_that_names_it(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--hf-checkpoint"):
        make_renderer(str(tmp_path))
    with pytest.raises(ConfigError, match="prompt_style 'haiku'"):
        make_renderer(str(folder), prompt_style="haiku")
    with pytest.raises(ConfigError, match="--renderer qwen33"):
        make_renderer(str(folder), renderer="qwen33")
