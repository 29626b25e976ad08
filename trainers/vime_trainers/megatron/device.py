"""The one module that decides where the trainer computes: CUDA (ROCm reports as CUDA) or the CPU.

megatron-core names CUDA in places that no setting reaches. `install_cpu_shims` and `cpu_compat` answer those
calls on a machine without an accelerator; with one, both do nothing. They patch `torch.cuda`, so they are for
trainer processes only, never for a process that also runs an engine.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
from typing import Any

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

from vime_agents.errors import ConfigError


def has_cuda() -> bool:
    """Whether there is an accelerator."""
    return torch.cuda.is_available()


def has_transformer_engine() -> bool:
    """Whether Transformer Engine's layers can be used: a package for accelerators."""
    return has_cuda() and importlib.util.find_spec("transformer_engine") is not None


def uses_transformer_engine(impl: str, *, fp8: str | None = None) -> bool:
    """Whether `--transformer-impl` comes to Transformer Engine's layers here; `fp8` is `--fp8-format`.

    Raises:
        ConfigError: they are asked for, and cannot be used.
    """
    if impl == "transformer_engine" and not has_transformer_engine():
        raise ConfigError(
            "--transformer-impl transformer_engine: needs an accelerator and the package transformer_engine "
            f"(accelerator: {'yes' if has_cuda() else 'no'}); give --transformer-impl local"
        )
    if fp8 is not None and not has_transformer_engine():
        raise ConfigError(
            f"--fp8-format {fp8}: needs an accelerator and the package transformer_engine "
            f"(accelerator: {'yes' if has_cuda() else 'no'}); drop it"
        )
    return impl != "local" and has_transformer_engine()


def device() -> torch.device:
    """Where this rank's tensors live."""
    return torch.device("cuda", torch.cuda.current_device()) if has_cuda() else torch.device("cpu")


def init_process_group() -> bool:
    """Join the process group that RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT describe; alone without them.

    On accelerators LOCAL_RANK picks the device, where more than one is visible.

    Returns:
        False when this process is in a process group already.
    """
    if has_cuda():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    if dist.is_initialized():
        return False
    backend = "cpu:gloo,cuda:nccl" if has_cuda() else "gloo"
    if "RANK" in os.environ:
        missing = {"WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} - set(os.environ)
        if missing:
            raise ConfigError(
                f"RANK is set but {sorted(missing)} are not: set all four, or none to run alone"
            )
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    return True


class _CudaLiteralsToCpu(TorchFunctionMode):
    """Turns `device="cuda"`, `pin_memory=True`, `.cuda()` and `.type() == 'torch.cuda...'` into CPU ones."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            return func(*args).replace("torch.", "torch.cuda.", 1)
        if kwargs:
            where = kwargs.get("device")
            if where is not None and torch.device(where).type == "cuda":
                kwargs = {**kwargs, "device": "cpu"}
            if kwargs.get("pin_memory"):
                kwargs = {**kwargs, "pin_memory": False}
            return func(*args, **kwargs)
        return func(*args)


class _NullStream:
    """Stands in for CUDA streams and events: everything is done when the call returns."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _NullStream)

    def __hash__(self) -> int:
        return 0

    def _nothing(self, *args: Any, **kwargs: Any) -> _NullStream:
        return self

    wait_stream = wait_event = record_event = record = wait = synchronize = _nothing


def install_cpu_shims() -> None:
    """Make megatron-core's unconditional `torch.cuda` calls answer on a machine without one. Idempotent."""
    # GPTModel announces its successor at each construction.
    logging.getLogger("megatron.core.models.gpt.gpt_model").setLevel(logging.ERROR)
    import megatron.core.transformer.multi_latent_attention as latent_attention

    if not isinstance(latent_attention.TELinear, type):
        latent_attention.HAVE_TE = False  # it takes a stand-in for Transformer Engine
    if has_cuda():
        return
    import megatron.core.tensor_parallel.random as megatron_random
    import megatron.core.transformer.moe.moe_utils as moe_utils
    import megatron.core.transformer.moe.token_dispatcher as token_dispatcher

    cuda: Any = torch.cuda
    cuda.current_device = lambda: torch.device("cpu")
    cuda.synchronize = lambda *args, **kwargs: None
    cuda.current_stream = lambda *args, **kwargs: _NullStream()
    cuda.Stream = cuda.Event = _NullStream
    cuda.stream = lambda stream: contextlib.nullcontext()
    cuda.get_rng_state = cuda.random.get_rng_state = lambda *args, **kwargs: torch.empty(0, dtype=torch.uint8)
    # Without this, torch would queue one deferred call for each use, for ever.
    megatron_random._set_cuda_rng_state = lambda *args, **kwargs: None
    # The number of tokens that go to each rank must become Python's, also where it is on the CPU already.
    token_dispatcher.maybe_move_tensor_to_cpu = _tokens_to_cpu
    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None  # type: ignore[attr-defined]  # read without Transformer Engine too


def _tokens_to_cpu(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor


def cpu_compat() -> contextlib.AbstractContextManager[Any]:
    """Around every call into megatron-core: a TorchFunctionMode holds for the thread that enters it."""
    return contextlib.nullcontext() if has_cuda() else _CudaLiteralsToCpu()
