"""Every error that vime-agents raises, in one tree.

```
VimeAgentsError
  ConfigError (ValueError)            a value in a flag, a file or a call; says where, what, and the fix
  DatasetError (ConfigError)          a bad row: file, line, key
  UnknownIdError (LookupError)        no such env, tool, sandbox, flag; carries the nearest known id
  MissingDependencyError (ImportError)  names the extra to install
  ContractError (RuntimeError)        a plug-in or a caller broke a promise (lengths, masks, step after end)
  RecordError (ContractError)         a token record that cannot be true
  NotStored (ContractError)           a grader asks for what the record of its episode does not hold
  EpisodeError                        recorded on the episode with its failure class, never ends a run
    ModelError                        the policy's reply cannot be used at all
    EnvError                          the author's hook raised
    EnvFault                          raised by authors: "infrastructure, not the model"
      ToolServerError                 a server that offers tools did not start, ended or cannot be reached
    GraderError                       scoring failed
      GraderTimeout                   a grader did not answer in time
      GraderOutOfMemory               a grader wanted more memory than its limit
      GraderCrashed                   a grader's process ended without an answer, or started too many
      Unscorable                      raised by authors: nobody can say what this answer is worth
    JudgeError                        an LLM judge gave no usable verdict
    EngineError                       the engine that samples: unreachable, 5xx, out of memory, dead
      EngineRejected                  the engine refuses the request itself (4xx): sending it again is no use
    SandboxError                      see the tree below
      SandboxUnavailable              the backend cannot work here; says why and what else would
        SandboxUnsupported            it works, but cannot give what was asked
      SandboxNotReady                 it was created but did not become ready
      SandboxDead                     the sandbox is gone; its output can no longer be trusted
        SandboxOutOfMemory            all of it was killed because memory ran out
      SandboxTimeout (TimeoutError)   the backend itself did not answer in time; has the limit and its value
      SandboxUnreachable              the backend's service cannot be reached; the sandbox may live
      SandboxBackendError             the backend's service answered with an error of its own
      SandboxDiskFull (OSError) / SandboxOutputTooLarge
      CommandNotFound / SandboxFileNotFound (FileNotFoundError) / SandboxPermissionError (PermissionError)
    BudgetError                       a money or token budget of the run is spent
  TrainerError                        ends the run
    NonFiniteError                    NaN or Inf in a loss or a gradient
    WeightSyncError                   the engine does not hold the trainer's weights
    CheckpointError
  ServingError                        an engine process that does not start or died
ToolError                             not a failure: becomes the tool's answer to the model
IllegalMove                           not a failure: the agent is asked again, or forfeits the game
```

To add one: give it the parent of the *boundary that was crossed*, and, if it can end an episode, a
`failure_class` out of `FAILURE_CLASSES`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import ClassVar

FAILURE_CLASSES = (
    "model",
    "env",
    "tool",
    "sandbox",
    "grader",
    "judge",
    "engine",
    "budget",
    "cancelled",
)
"""Who could have caused a failed episode."""


class VimeAgentsError(Exception):
    """Root of the tree."""


class ConfigError(VimeAgentsError, ValueError):
    """A value that the user gave is wrong. The message names the flag or key, the value and the fix."""


class DatasetError(ConfigError):
    """A bad row of a dataset. The message names the file, the line and the key."""


class UnknownIdError(VimeAgentsError, LookupError):
    """No such id. `suggestion` is the nearest known one, or None."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.kind, self.name = kind, name
        self.known = sorted(known)
        self.suggestion = nearest(name, self.known)
        hint = _did_you_mean(self.suggestion, "{!r}")
        listing = f" Known: {', '.join(self.known)}." if 0 < len(self.known) <= 20 else ""
        super().__init__(f"unknown {kind} {name!r}.{hint}{listing}")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.kind, self.name, self.known)


class MissingDependencyError(VimeAgentsError, ImportError):
    """An optional package is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        self.package, self.extra, self.purpose = package, extra, purpose
        super().__init__(f"{purpose} needs the package {package!r}: pip install 'vime-agents[{extra}]'")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.package, self.extra, self.purpose)


class ContractError(VimeAgentsError, RuntimeError):
    """A plug-in or a caller broke a promise of the API."""


class RecordError(ContractError):
    """A token record that cannot be true: lengths disagree, a log-prob is missing, a mask has no reason."""


class NotStored(ContractError):
    """A grader asks for something of its episode that the record does not hold."""


class EpisodeError(VimeAgentsError):
    """Ends one episode, never a run. `failure_class` says who caused it."""

    failure_class: ClassVar[str] = "env"
    retryable: ClassVar[bool] = False
    """True when a fresh attempt may succeed and the policy cannot have caused the failure."""


class ModelError(EpisodeError):
    """The policy's reply cannot be used at all."""

    failure_class = "model"


class EnvError(EpisodeError):
    """A hook of the environment's author raised."""


class EnvFault(EpisodeError):
    """Raised by authors of envs and tools to say: infrastructure failed, not the model."""

    retryable = True


class ToolServerError(EnvFault):
    """A server that offers tools did not start, has ended or cannot be reached."""

    failure_class = "tool"


class GraderError(EpisodeError):
    """Scoring failed: the episode has no trusted reward."""

    failure_class = "grader"


class GraderTimeout(GraderError):
    """A grader did not answer in time; it and all that it started were ended."""


class GraderOutOfMemory(GraderError):
    """A grader wanted more memory than its limit."""


class GraderCrashed(GraderError):
    """A grader's process ended without an answer (a signal, an exit), or started too many processes."""


class Unscorable(GraderError):
    """Raised by graders to say that the task has no answer key, or none that can be read.

    Not a failure: the episode's reward has the status `unscorable` and no value.
    """


class JudgeError(EpisodeError):
    """An LLM judge gave no usable verdict, after all its tries."""

    failure_class = "judge"


class EngineError(EpisodeError):
    """The engine that samples tokens failed: unreachable, out of memory, malformed answer."""

    failure_class = "engine"
    retryable = True


class EngineRejected(EngineError):
    """The engine refuses the request itself (4xx); sending it again is no use."""

    retryable = False


class BudgetError(EpisodeError):
    """A budget of the whole run is spent."""

    failure_class = "budget"


class SandboxError(EpisodeError):
    """The sandbox's infrastructure failed. Never raised for what a command did."""

    failure_class = "sandbox"
    retryable = True


class SandboxUnavailable(SandboxError):
    """The backend cannot work on this machine; the message says why and what else would."""

    retryable = False


class SandboxUnsupported(SandboxUnavailable):
    """The backend works here but cannot give what was asked: a limit, a policy, a user, a snapshot."""


class SandboxNotReady(SandboxError):
    """It was created but did not become ready: its start or a setup command failed."""


class SandboxBackendError(SandboxError):
    """The backend's service answered with an error of its own."""


class SandboxUnreachable(SandboxError):
    """The backend's service cannot be reached: whether the sandbox still lives is not known."""


class SandboxDead(SandboxError):
    """The sandbox is gone; nothing that it answers can be trusted."""


class SandboxOutOfMemory(SandboxDead):
    """The sandbox as a whole was killed because memory ran out."""


class SandboxTimeout(SandboxError, TimeoutError):
    """The backend itself did not answer in time (a command's own timeout is a result instead)."""

    def __init__(
        self,
        message: str,
        *,
        limit: str | None = None,
        limit_s: float | None = None,
        elapsed_s: float | None = None,
    ) -> None:
        """Which limit it was, its value, and how long it took, in seconds."""
        super().__init__(message)
        self.limit, self.limit_s, self.elapsed_s = limit, limit_s, elapsed_s


class SandboxDiskFull(SandboxError, OSError):
    """No room is left in the sandbox."""

    retryable = False


class SandboxOutputTooLarge(SandboxError):
    """A file or a tree is larger than the caller allowed."""

    retryable = False


class CommandNotFound(SandboxError):
    """The program to run does not exist in the sandbox."""

    retryable = False


class SandboxFileNotFound(SandboxError, FileNotFoundError):
    """A path to read does not exist in the sandbox."""

    retryable = False


class SandboxPermissionError(SandboxError, PermissionError):
    """The sandbox's user may not do that."""

    retryable = False


class TrainerError(VimeAgentsError):
    """Ends the run."""


class NonFiniteError(TrainerError):
    """NaN or Inf in a loss or a gradient; raised before the optimizer steps."""

    @classmethod
    def of_update(cls, update: int, what: str, value: float, sample_ids: Sequence[str]) -> NonFiniteError:
        """`what` is the quantity that came to `value`; of the samples, the first eight are named."""
        rest = f" and {len(sample_ids) - 8} more" if len(sample_ids) > 8 else ""
        return cls(
            f"update {update}: the {what} is {value}; samples {', '.join(sample_ids[:8])}{rest}. The weights "
            "are unchanged: look at these samples, or resume from an earlier checkpoint with a lower --lr"
        )


class WeightSyncError(TrainerError):
    """The engine does not hold the weights that the trainer published."""


class CheckpointError(TrainerError):
    """A checkpoint cannot be written or read."""


class ServingError(VimeAgentsError):
    """An engine process did not start, or died."""


class ToolError(Exception):
    """Raised inside a tool to answer the model with an error message. Not a failure of the episode."""


class IllegalMove(Exception):
    """Raised by a game's `parse` or `move`, before anything changed; the message is for the agent to read.

    Not a failure of the episode: the agent is asked again, or forfeits.
    """


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name closest to `name`, or None when nothing is close."""
    known = list(known)
    lowered = {k.lower(): k for k in known}
    hit = difflib.get_close_matches(name.lower(), list(lowered), n=1, cutoff=0.6)
    return lowered[hit[0]] if hit else None


def did_you_mean(name: str, known: Iterable[str], form: str = "{!r}") -> str:
    """A question to end a message with, the nearest known name in `form`; empty when none is close."""
    return _did_you_mean(nearest(name, known), form)


def _did_you_mean(close: str | None, form: str) -> str:
    return f" Did you mean {form.format(close)}?" if close else ""
