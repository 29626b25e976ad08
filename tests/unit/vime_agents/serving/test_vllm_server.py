"""The command line of a server, and what is refused before one is started."""

from __future__ import annotations

import itertools
import json
import socket
import sys
from pathlib import Path

import pytest

from vime_agents.errors import ConfigError, ServingError
from vime_agents.serving import vllm_server
from vime_agents.serving.vllm_server import (
    WORKER_EXTENSION,
    VllmServer,
    VllmServerConfig,
    server_command,
    server_environment,
)


def flags(command: list[str]) -> dict[str, str]:
    return {a: b for a, b in itertools.pairwise(command) if a.startswith("--")}


def test_cpu_and_gpu_get_their_own_defaults():
    config = VllmServerConfig(model=Path("/m"), max_model_len=64)
    cpu, gpu = (server_command(config, port=5, device=device) for device in ("cpu", "gpu"))
    assert (flags(cpu)["--dtype"], flags(gpu)["--dtype"]) == ("float32", "bfloat16")
    assert "--enforce-eager" in cpu
    assert "--enforce-eager" not in gpu
    assert flags(cpu)["--kv-cache-memory-bytes"] == str(512 * 1024**2)
    assert "--kv-cache-memory-bytes" not in gpu


def test_what_exact_rollouts_need_is_always_on():
    command = server_command(VllmServerConfig(model=Path("/m")), port=5, device="gpu")
    given = flags(command)
    assert given["--logprobs-mode"] == "processed_logprobs"
    assert given["--worker-extension-cls"] == WORKER_EXTENSION
    assert json.loads(given["--weight-transfer-config"]) == {"backend": "file"}
    assert "--enable-scale-out" in command


def test_extra_arguments_come_last_and_as_they_are():
    config = VllmServerConfig(model=Path("/m"), dtype="float16", extra_args=("--max-num-seqs", "8"))
    command = server_command(config, port=5, device="gpu")
    assert command[-2:] == ["--max-num-seqs", "8"]
    assert flags(command)["--dtype"] == "float16"


def test_the_environment_pins_cpu_threads_and_picks_gpus():
    config = VllmServerConfig(model=Path("/m"), omp_num_threads=2, cpu_cores="0-1", cuda_visible_devices="3")
    cpu = server_environment(config, device="cpu")
    assert (cpu["OMP_NUM_THREADS"], cpu["VLLM_CPU_OMP_THREADS_BIND"]) == ("2", "0-1")
    assert cpu["OMP_WAIT_POLICY"] == "PASSIVE"
    assert server_environment(config, device="gpu")["CUDA_VISIBLE_DEVICES"] == "3"


async def test_a_taken_port_is_named(tiny_folder: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = VllmServer(VllmServerConfig(model=tiny_folder, port=port))
        with pytest.raises(
            ServingError, match=rf"127\.0\.0\.1:{port}.*Address already in use.*VllmServerConfig\.port"
        ):
            await server.start()


async def test_a_broken_model_folder_is_refused_at_once(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"--hf-checkpoint .*has no config\.json"):
        await VllmServer(VllmServerConfig(model=tmp_path)).start()


def python(code: str) -> object:
    return lambda *_, **__: [sys.executable, "-c", code]


async def test_a_server_that_dies_at_once_is_an_error_with_its_reason(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(vllm_server, "server_command", python("raise RuntimeError('no such device')"))
    server = VllmServer(VllmServerConfig(model=tiny_folder, log_path=tmp_path / "log"))
    with pytest.raises(ServingError, match="died while starting: RuntimeError: no such device"):
        await server.start()
    assert not server.alive()


async def test_a_server_that_is_never_ready_is_stopped(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(vllm_server, "server_command", python("import time; time.sleep(300)"))
    config = VllmServerConfig(model=tiny_folder, log_path=tmp_path / "log", startup_timeout_s=0.5)
    server = VllmServer(config)
    with pytest.raises(ServingError, match=r"not ready after 0\.5 s"):
        await server.start()
    assert not server.alive()


async def test_a_hanging_server_holds_up_neither_the_deadline_nor_the_stop(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    code = (
        "import http.server, sys, time\n"
        "class H(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self): self.send_response(200); self.end_headers()\n"
        "    def do_POST(self): time.sleep(300)\n"
        "http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), H).serve_forever()\n"
    )
    monkeypatch.setattr(
        vllm_server, "server_command", lambda _, *, port, device: [sys.executable, "-c", code, str(port)]
    )
    config = VllmServerConfig(model=tiny_folder, log_path=tmp_path / "log", startup_timeout_s=1.5)
    with pytest.raises(ServingError, match=r"not ready after 1\.5 s"):
        await VllmServer(config).start()


def test_a_server_that_was_not_started_has_no_address(tiny_folder: Path):
    server = VllmServer(VllmServerConfig(model=tiny_folder))
    assert not server.alive()
    with pytest.raises(ServingError, match="call start"):
        _ = server.url


def test_a_port_of_ones_own_choice_is_never_one_that_the_kernel_hands_out():
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = {vllm_server._claim_port("127.0.0.1", 0) for _ in range(50)}
    assert all(10_240 <= port < low for port in ports)
    assert len(ports) > 10
