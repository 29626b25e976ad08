"""A person as a policy: asked at the prompt, on the main thread, while the episode runs on another one."""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from vime_agents.cli.play_reply import (
    NotUnderstood,
    as_sampled,
    completions,
    function_of,
    parse_reply,
)
from vime_agents.cli.tool_text import tool_lines
from vime_agents.messages import assistant
from vime_agents.policy import Conversation, Generation, Sampling
from vime_agents.rollout.attempt import Truncate

T = TypeVar("T")
Schemas = Sequence[dict[str, Any]]

COMMANDS = ("help", "quit")
"""What a person can say besides replies and tool calls. A tool of the same name goes first."""

LEFT = "the player left"

HELP = """\
Text and Enter reply. A line that ends with \\ goes on in the next one.
  /NAME argument=value ...   call a tool; with one parameter also /NAME VALUE, or as JSON: /NAME {...}
  //...                      text that begins with a slash
  /help [NAME]               this and the tools, or one tool
  /quit                      leave, as Ctrl-D does: what was reached counts"""


class Prompt:
    """Carries questions from the episode's thread to the person's, and answers back."""

    def __init__(self) -> None:
        self._questions: queue.SimpleQueue[tuple[str, Schemas, Future[str]] | None] = queue.SimpleQueue()

    async def ask(self, prompt: str, schemas: Schemas = ()) -> str:
        """One line. Raises EOFError: there are no more. NotUnderstood: it is not text."""
        answer: Future[str] = Future()
        self._questions.put((prompt, schemas, answer))
        return await asyncio.wrap_future(answer)

    def run(self, play: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of a coroutine, on a loop in a thread of its own; this thread asks for it.

        Raises KeyboardInterrupt at Ctrl-C, when what the coroutine holds is released.
        """
        result: Future[T] = Future()
        started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = Future()

        async def main() -> T:
            task = asyncio.ensure_future(play())
            started.set_result((asyncio.get_running_loop(), task))
            return await task

        def body() -> None:
            try:
                result.set_result(asyncio.run(main()))
            except BaseException as error:  # noqa: BLE001 - carried to the thread that waits
                result.set_exception(error)
            finally:
                self._questions.put(None)

        # A second Ctrl-C, while the first one's closing hangs, must end the process.
        thread = threading.Thread(target=body, name="vime-play", daemon=True)
        thread.start()
        try:
            while (question := self._questions.get()) is not None:
                _answer(*question)
            return result.result()
        except KeyboardInterrupt:
            loop, task = started.result()
            loop.call_soon_threadsafe(task.cancel)
            thread.join()
            raise


class PersonPolicy:
    """A policy that asks a person for each reply."""

    name = "person"
    exact_tokens = False

    def __init__(self, prompt: Prompt, say: Callable[[str], None], *, name_agents: bool = False) -> None:
        """`say` shows a text to the person; `name_agents` puts the agent's name before the prompt."""
        self._prompt, self._say, self._name_agents = prompt, say, name_agents

    async def act(
        self, conversation: Conversation, *, sampling: Sampling, timeout_s: float | None = None
    ) -> Generation:
        """Ask until there is a reply. Raises Truncate: the person leaves."""
        schemas = list(conversation.tools)
        ask = f"{conversation.agent if self._name_agents else ''}> "
        while True:
            try:
                text = await self._lines(ask, schemas)
                if self._is_command(text, schemas):
                    continue
                message = parse_reply(text, schemas, conversation.turn)
            except EOFError:
                raise Truncate("cancelled", LEFT) from None
            except NotUnderstood as error:
                self._say(str(error))
                continue
            calls = message.get("tool_calls", ())
            if message["content"] or not calls:
                message = assistant(as_sampled(message["content"], sampling.stop), calls)
            return Generation(message=message, finish_reason="tool_calls" if calls else "stop")

    async def aclose(self) -> None:
        """Nothing to release."""

    async def _lines(self, ask: str, schemas: Schemas) -> str:
        """A line and those that it goes on in; empty lines before it are skipped."""
        while not (text := await self._prompt.ask(ask, schemas)).strip():
            pass
        while text.endswith("\\"):
            text = f"{text[:-1]}\n{await self._prompt.ask('. ', schemas)}"
        return text

    def _is_command(self, text: str, schemas: Schemas) -> bool:
        """Whether it was one, which is done now. Raises Truncate, NotUnderstood."""
        word, _, rest = text.strip().partition(" ")
        tools = {s["function"]["name"] for s in schemas}
        if word[1:] not in COMMANDS or not word.startswith("/") or word[1:] in tools:
            return False
        if word == "/quit":
            raise Truncate("cancelled", LEFT)
        self._say(help_text(schemas, rest.strip().removeprefix("/")))
        return True


def help_text(schemas: Schemas, name: str = "") -> str:
    """What can be said, and the tools; or one tool. Raises NotUnderstood."""
    if name:
        return "\n".join(tool_lines({"function": function_of(name, schemas)}))
    tools = [f"  {line}" for schema in schemas for line in tool_lines(schema)]
    return "\n".join([HELP, *(["tools:", *tools] if tools else ["There are no tools here."])])


def _answer(prompt: str, schemas: Schemas, answer: Future[str]) -> None:
    if not answer.set_running_or_notify_cancel():
        return
    if at_terminal():
        _complete_with(schemas)
    try:
        line = input(prompt if at_terminal() else "")
    except EOFError as error:
        if at_terminal():
            print()  # the prompt's line has no end
        answer.set_exception(error)
    except UnicodeDecodeError as error:
        answer.set_exception(NotUnderstood(f"that is not text: {error}"))
    else:
        answer.set_result(line)


def at_terminal() -> bool:
    """Whether a person types here and sees what is typed."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def _complete_with(schemas: Schemas) -> None:
    """Tab completes tools, parameters and values, where Python has readline."""
    try:
        import readline
    except ModuleNotFoundError:
        return

    def complete(text: str, state: int) -> str | None:
        line = readline.get_line_buffer()[: readline.get_endidx()]
        found = completions(line, schemas, COMMANDS)
        return found[state] if state < len(found) else None

    readline.set_completer_delims(" ")
    readline.set_completer(complete)
    readline.parse_and_bind("tab: complete")
