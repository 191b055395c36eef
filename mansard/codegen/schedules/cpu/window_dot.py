"""CPU schedule of windows over channels-last bytes (or bf16) by dot-product instructions.

As `mansard.codegen.schedules.cpu.window`, with the weights' panels in groups of four channels (two of bf16);
the image's group is loaded as one 32-bit word and broadcast::

    for c in steps of the group:
        accumulators[p][v] += x[stride * (p0 + p) + kx, c:c+group] . w[ky, kx, v, c:c+group]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mansard.codegen.kernel import KValue
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Nest, Root
from mansard.codegen.parameters import Parameters
from mansard.codegen.schedules.common.base import Frame, Scheduled, divides
from mansard.codegen.schedules.common.dot_products import DotFactor, load_raw, low_precision_product
from mansard.codegen.schedules.cpu import window
from mansard.codegen.schedules.cpu.window import WindowLoops, Windows


def analyse(nest: Nest, target: KernelTarget) -> WindowLoops | None:
    """The loops of a nest as a window of dot products; None if it is not one."""
    loops = window.analyse(nest, target)
    if loops is None or loops.weights is None or loops.walking or not loops.inner:
        return None
    (root,) = (r for r in nest.roots if r.reduces)
    product = low_precision_product(nest, root, padded=True)
    if product is None or loops.lanes % 4:
        return None
    channels, image = loops.inner[-1], _image(nest, root, loops)
    steps = dict(image.address.terms)
    if steps.get(channels[-1]) != 1 or not divides(nest.total(channels), product.group):
        return None
    if loops.column[-1] in steps:
        return None
    weights = replace(loops.weights, panels=replace(loops.weights.panels, group=product.group))
    return replace(loops, weights=weights, group=product.group)


def _image(nest: Nest, root: Root, loops: WindowLoops) -> DotFactor:
    """The factor that is not the weights."""
    product = low_precision_product(nest, root, padded=True)
    assert product is not None and loops.weights is not None
    return product.right if product.left.value is loops.weights.value else product.left


def candidates(nest: Nest, target: KernelTarget) -> Sequence[Parameters]:
    """Register tiles worth trying, the default first."""
    loops = analyse(nest, target)
    assert loops is not None
    return window.candidates_of(nest, loops, target)


def schedule(nest: Nest, target: KernelTarget, name: str, parameters: Parameters | None = None) -> Scheduled:
    """One task computes rows of the image over a block of column tiles."""
    loops = analyse(nest, target)
    assert loops is not None
    frame = Frame(nest, target, name)
    (root,) = (r for r in nest.roots if r.reduces)
    return _DotWindows(frame, root, loops, parameters or window.default(nest, loops, target)).run()


class _DotWindows(Windows):
    """The kernel of a window of dot products under construction."""

    def __init__(self, frame: Frame, root: Root, loops: WindowLoops, tile: Parameters) -> None:
        super().__init__(frame, root, loops, tile)
        assert loops.weights is not None
        self.image = _image(frame.nest, root, loops)
        self.panels = self.b.bindings[self.ev.binding_of[loops.weights.value]]

    def combine(self, accumulator: KValue) -> KValue:
        """The accumulator plus the products of one group of channels."""
        b, group, lanes = self.b, self.loops.group, accumulator.type.lanes
        assert self.weights is not None
        self.ev.vector = None
        word = load_raw(self.ev, self.image, group)
        repeated = b.shuffle(word, word, tuple(range(group)) * lanes)
        weights = b.load(self.panels, self.ev.places[self.weights.value], lanes * group)
        return b.dot(repeated, weights, accumulator)
