"""Peaks of accelerators, and memory."""

import resource

import torch

from vime_trainers import machine


def test_what_the_user_says_comes_first_and_nothing_is_guessed(monkeypatch):
    assert machine.peak_tflops(12.5) == 12.5
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert machine.peak_tflops() is None


def test_the_longest_word_of_the_name_decides(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for name, peak in (
        ("NVIDIA H200", 989.0),
        ("NVIDIA H20", 148.0),
        ("A100-SXM4", 312.0),
        ("X9", None),
    ):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda name=name: name)
        assert machine.peak_tflops() == peak


def test_memory_on_a_host_is_the_largest_resident_set(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert peak <= machine.peak_memory_bytes() < 2 * peak
