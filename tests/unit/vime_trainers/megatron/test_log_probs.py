import pytest
import torch
from torch.overrides import TorchFunctionMode

from vime_trainers.megatron.log_probs import token_log_probs, top_k_log_probs


class Alone:
    """A tensor-parallel group of one rank."""

    def rank(self):
        return 0

    def size(self):
        return 1


def run(logits, targets, **settings):
    """Log-probs and entropies; see `run_top`."""
    return run_top(logits, targets, **settings)[:2]


def run_top(
    logits, targets, *, vocab_size=None, temperature=1.0, chunk_size=100, entropy_grad=False, top_ids=None
):
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
        top_ids=top_ids,
    )


def run_top_k(logits, k, *, vocab_size=None, num_candidates=None, temperature=1.0, chunk_size=100):
    """The same for the likeliest tokens."""
    width = vocab_size or logits.shape[1]
    return top_k_log_probs(
        logits,
        torch.eye(logits.shape[1]),
        k,
        vocab_size=width,
        num_candidates=num_candidates or width,
        temperature=temperature,
        chunk_size=chunk_size,
        group=Alone(),
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


@pytest.mark.parametrize("chunk_size", [2, 100])
@pytest.mark.parametrize("k", [1, 3, 6])
def test_log_probs_of_given_tokens_and_of_the_rest(chunk_size, k):
    """6 of 6 leave none: -inf. Values and gradients against a softmax over all."""
    torch.manual_seed(1)
    hidden, weigh = torch.randn(5, 7), torch.randn(5, k + 1)
    ids = torch.rand(5, 6).argsort(-1)[:, :k]
    logits = hidden.clone().requires_grad_()
    *_, found = run_top(logits, [0] * 5, vocab_size=6, temperature=0.7, chunk_size=chunk_size, top_ids=ids)
    table = torch.log_softmax(logits[:, :6] / 0.7, -1)
    others = torch.stack([1 - table[i].exp()[ids[i]].sum() for i in range(5)])
    expected = table.gather(1, ids)
    if k < 6:
        expected = torch.cat([expected, others.log()[:, None]], 1)
    else:
        assert found[:, -1].tolist() == [-torch.inf] * 5
        found, weigh = found[:, :-1], weigh[:, :-1]
    torch.testing.assert_close(found, expected)
    gradients = [
        torch.autograd.grad((x * weigh).sum(), logits, retain_graph=True)[0] for x in (found, expected)
    ]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("chunk_size", [2, 100])
def test_the_likeliest_tokens_are_those_of_the_sorted_softmax(chunk_size):
    torch.manual_seed(2)
    logits = torch.randn(5, 9)
    ids, log_probs = run_top_k(logits, 3, vocab_size=8, temperature=0.5, chunk_size=chunk_size)
    best, order = torch.log_softmax(logits[:, :8] / 0.5, -1).sort(-1, descending=True)
    assert ids.tolist() == order[:, :3].tolist()
    torch.testing.assert_close(log_probs[:, :3], best[:, :3])
    torch.testing.assert_close(log_probs[:, 3], best[:, 3:].exp().sum(-1).log())


def test_tokens_that_the_student_lacks_are_part_of_the_rest():
    ids, log_probs = run_top_k(torch.tensor([[1.0, 0.0, 5.0]]), 2, num_candidates=2)
    expected = torch.log_softmax(torch.tensor([[1.0, 0.0, 5.0]]), -1)
    assert ids.tolist() == [[0, 1]]
    torch.testing.assert_close(log_probs, expected)


def test_the_rest_of_a_model_that_is_sure_is_little_and_not_nothing():
    """exp(-200) is 0 in float32; the whole vocabulary leaves nothing."""
    logits = torch.tensor([[0.0, -200.0, -200.0]])
    assert run_top_k(logits, 1)[1][0].tolist() == pytest.approx([0.0, -200 + 0.693147], abs=1e-4)
    assert run_top_k(logits, 3)[1][0].tolist() == [0, -200, -200, -torch.inf]


class LargestTensor(TorchFunctionMode):
    """The most elements of any floating-point result while it is entered."""

    def __init__(self):
        super().__init__()
        self.size = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for x in result if isinstance(result, tuple) else (result,):
            if isinstance(x, torch.Tensor) and x.is_floating_point():
                self.size = max(self.size, x.numel())
        return result


def test_neither_side_ever_holds_the_logits_of_all_tokens():
    hidden, width, chunk = torch.randn(640, 4), 50, 16
    weight = torch.randn(width, 4)
    settings = {"vocab_size": width, "temperature": 1.0, "chunk_size": chunk, "group": Alone()}
    with LargestTensor() as seen:
        ids, _ = top_k_log_probs(hidden, weight, 2, num_candidates=width, **settings)
        token_log_probs(hidden.requires_grad_(), weight, ids[:, 0], top_ids=ids, **settings)[
            2
        ].sum().backward()
    assert chunk * width <= seen.size < 640 * 5
