"""Complex numbers inside of PyTorch models, and Fourier transforms, against PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.frontends.torch_import import as_module, import_and_check, import_and_check_all

from mansard.errors import UnsupportedOpError
from mansard.frontends import import_model

X = torch.randn(2, 8, 10, generator=torch.Generator().manual_seed(1))
SIGNAL = torch.randn(2, 64, generator=torch.Generator().manual_seed(2))
HANN = torch.hann_window(16)
fft = torch.fft


def rotated(x: torch.Tensor) -> torch.Tensor:
    """Rotary embeddings as complex factors."""
    angles = torch.arange(40.0).reshape(8, 5)
    pairs = torch.view_as_complex(x.reshape(2, 8, 5, 2))
    return torch.view_as_real(pairs * torch.polar(torch.ones(8, 5), angles)).flatten(2)


def echo(x: torch.Tensor) -> torch.Tensor:
    frames = torch.stft(x, 16, 8, window=HANN, return_complex=True)
    return torch.istft(frames * 0.5, 16, 8, window=HANN, length=60)


def two_sided(x: torch.Tensor) -> Any:
    """Transforms of a complex signal, and their inverses."""
    options = {"n_fft": 16, "hop_length": 8, "window": HANN, "onesided": False}
    frames = torch.stft(torch.complex(x, -x), **options, return_complex=True)
    back = torch.istft(frames, **options, return_complex=True)
    real = torch.istft(torch.stft(x, **options, return_complex=True), **options)
    return frames.abs(), back.imag, real


def test_transforms() -> None:
    def transformed(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        one, two = fft.fft(x), fft.fft2(x)
        return (
            fft.rfft(x).abs(), one.angle(), two.real, fft.ifft(one * (1 + 2j)).imag, fft.fftshift(two).abs(),
            fft.irfft2(fft.rfft2(x, norm="ortho") * 2, s=(8, 10), norm="ortho"),
            fft.irfft(fft.rfft(x[..., :9]), 9), fft.hfft(torch.complex(x, x)),
        )  # fmt: skip

    import_and_check(transformed, X)


def test_values_are_pairs() -> None:
    functions = {
        "rotated": rotated,
        "elements": lambda x: (torch.exp(1j * x).real, (x + 1j * x).conj().imag),
        "product": lambda x: (torch.complex(x, x) @ torch.complex(x, -x).mT).imag,
    }
    import_and_check_all({name: (function, X) for name, function in functions.items()})


@pytest.mark.filterwarnings("ignore:.*return_complex=False")
def test_spectra_of_frames() -> None:
    functions = {
        "magnitudes": lambda x: torch.stft(x, 16, 8, window=HANN, return_complex=True).abs(),
        "normalized": lambda x: torch.stft(
            x[0], 16, window=torch.ones(16), normalized=True, return_complex=False),
        "echo": echo,
        "two-sided": two_sided,
    }  # fmt: skip
    import_and_check_all({name: (function, SIGNAL) for name, function in functions.items()})


def test_an_op_without_a_rule_for_pairs_is_named_without_torchs_notes() -> None:
    with pytest.raises(UnsupportedOpError) as caught:
        import_model(as_module(lambda x: torch.logcumsumexp(fft.fft(x), 0).real), (X,))
    assert "aten.logcumsumexp" in str(caught.value) and "no rule" in str(caught.value)
    assert "executing" not in str(caught.value) and "dispatch" not in str(caught.value)
