"""Which renderer a model gets."""

from __future__ import annotations

from typing import Any

from vime_agents.errors import ConfigError, MissingDependencyError
from vime_agents.rendering.chat_template import ChatTemplateRenderer
from vime_agents.rendering.renderer import Renderer
from vime_agents.rendering.renderers_package import PackageRenderer
from vime_agents.rendering.text import TextRenderer
from vime_agents.rendering.tokenizer import load_tokenizer

PROMPT_STYLES = ("chat", "text")


def make_renderer(hf_checkpoint: str, *, prompt_style: str = "chat", renderer: str = "auto") -> Renderer:
    """The renderer of a local Hugging Face folder.

    Args:
        hf_checkpoint: a folder with a tokenizer.
        prompt_style: what the env asks for: `text` concatenates contents, `chat` takes the model's template.
        renderer: `auto`, or the name of a hand-written one of the package `renderers` (`qwen3`, `glm5`, ...)
            for chat prompts.

    Raises:
        ConfigError: no tokenizer, no chat template, or an unknown style or renderer.
        MissingDependencyError: the extra `tokens` is not installed.
    """
    if prompt_style not in PROMPT_STYLES:
        raise ConfigError(f"prompt_style {prompt_style!r} is not one of {PROMPT_STYLES}")
    tokenizer = load_tokenizer(hf_checkpoint)
    if prompt_style == "text":
        return TextRenderer(tokenizer)
    if renderer == "auto":
        return ChatTemplateRenderer(tokenizer)
    return PackageRenderer(_packaged(tokenizer, renderer))


def _packaged(tokenizer: Any, name: str) -> Any:
    try:
        import renderers
    except ImportError as error:
        raise MissingDependencyError("renderers", "tokens", f"--renderer {name}") from error
    try:
        config: Any = renderers.config_from_name(name)
        return renderers.create_renderer(tokenizer, config)
    except (AssertionError, KeyError, ValueError) as error:
        raise ConfigError(f"--renderer {name}: {error}") from error
