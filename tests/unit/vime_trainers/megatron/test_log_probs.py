import pytest
import torch

from vime_trainers.megatron.log_probs import token_log_probs


class Alone:
    """A tensor-parallel group of one rank."""

    def rank(self):
        return 0

    def size(self):
        return 1


def run(logits, targets, *, vocab_size=None, temperature=1.0, chunk_size=100, entropy_grad=False):
    """The hidden states are the logits themselves: the output layer is the identity."""
    width = logits.shape[1]
    return token_log_probs(
        logits,
        torch.eye(width),
        torch.tensor(targets),
        vocab_size=vocab_size or width,
        temperature=temperature,
        chunk_size=chunk_size,
        group=Alone(),
        entropy_grad=entropy_grad,
    )


def test_value_and_gradient_of_one_token():
    logits = torch.tensor([[2.0, 1.0, 0.0]], requires_grad=True)
    log_probs, _ = run(logits, [1])
    assert log_probs.item() == pytest.approx(-1.407606, abs=1e-6)
    gradient = torch.autograd.grad(-log_probs.sum(), logits)[0]
    assert gradient[0].tolist() == pytest.approx([0.665241, -0.755272, 0.090031], abs=1e-6)


@pytest.mark.parametrize(
    ("temperature", "expected"),
    [(0.5, [-0.142932, -2.142932, -4.142932]), (2.0, [-0.680270, -1.180270, -1.680270])],
)
def test_temperature_divides_logits_not_log_probs(temperature, expected):
    log_probs, _ = run(torch.tensor([[2.0, 1.0, 0.0]] * 3), [0, 1, 2], temperature=temperature)
    assert log_probs.tolist() == pytest.approx(expected, abs=1e-6)


def test_padded_vocabulary_takes_no_part():
    log_probs, entropy = run(torch.tensor([[2.0, 1.0, 0.0, 0.0, 0.0]]), [1], vocab_size=3)
    assert log_probs.item() == pytest.approx(-1.407606, abs=1e-6)
    assert entropy.item() == pytest.approx(0.832396, abs=1e-6)


def test_entropy_and_its_gradient():
    logits = torch.tensor([[0.2, -0.1, 0.4]], requires_grad=True)
    _, entropy = run(logits, [0], entropy_grad=True)
    assert entropy.item() == pytest.approx(1.078500614, abs=1e-6)
    gradient = torch.autograd.grad(entropy.sum(), logits)[0]
    assert gradient[0].tolist() == pytest.approx([0.002511191, 0.076886969, -0.079398161], abs=1e-6)


def test_entropy_without_gradient_is_the_same_value():
    logits = torch.tensor([[0.2, -0.1, 0.4]], requires_grad=True)
    _, entropy = run(logits, [0])
    assert not entropy.requires_grad
    assert entropy.item() == pytest.approx(1.078500614, abs=1e-6)


@pytest.mark.parametrize("chunk_size", [1, 3])
def test_chunks_change_neither_values_nor_gradients(chunk_size):
    """Plan 55."""
    torch.manual_seed(0)
    hidden, targets = torch.randn(7, 5), [0, 1, 2, 3, 4, 0, 1]
    results = []
    for size in (chunk_size, 100):
        logits = hidden.clone().requires_grad_()
        log_probs, entropy = run(logits, targets, chunk_size=size, temperature=0.7, entropy_grad=True)
        gradient = torch.autograd.grad((log_probs + 0.3 * entropy).sum(), logits)[0]
        results.append((log_probs.detach(), entropy.detach(), gradient))
    for chunked, whole in zip(*results, strict=True):
        torch.testing.assert_close(chunked, whole)
    torch.testing.assert_close(
        results[0][0], torch.log_softmax(hidden / 0.7, -1)[torch.arange(7), torch.tensor(targets)]
    )
