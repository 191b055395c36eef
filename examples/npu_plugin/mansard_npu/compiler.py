"""The compiler half: which dispatches the NPU's library has a function for, and the calls of it."""

from __future__ import annotations

import json

from mansard.codegen.backend import Backend, CompiledDispatch
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.parameters import Parameters
from mansard.dims import symbol
from mansard.dtypes import DType
from mansard.errors import CodegenError
from mansard.hal.device import DeviceInfo
from mansard.hal.executable import EntryPoint, ExecutableSpec
from mansard.ir.dispatch import Dispatch, is_contraction
from mansard.ir.ops import Generic, Reshape
from mansard.ir.scalar import Apply, Arg, Cast, Gather, Scalar, walk
from mansard.ir.serialise import Writer
from mansard.placement import estimate_work
from mansard.targets.profile import DeviceProfile, LinkProfile
from mansard_npu.driver import DRIVER
from mansard_npu.library import FORMAT

_FACTORS = {DType.I8: "i8", DType.U8: "i8", DType.BF16: "bf16"}


class NpuBackend(Backend):
    """Products and convolutions of i8 and bf16 with what is fused to them; everything else is refused."""

    name = "npu"
    late_binding = True

    def parse_target(self, text: str) -> KernelTarget:
        """``npu`` alone."""
        if text != self.name:
            raise CodegenError(f"unknown target {text!r}: the simulated NPU has one, {self.name!r}")
        return KernelTarget(self.name)

    def profile(self, text: str, device: DeviceInfo | None) -> DeviceProfile:
        """The figures of the device's model, of the first one's without a device."""
        models = DRIVER.models()
        index = device.index if device is not None and device.driver == self.name else 0
        model = models[min(index, len(models) - 1)]
        rates = {**model.rates, "f32": min(model.rates.values())}
        link = LinkProfile(model.link, model.handoff)
        name = device.id if device is not None else self.name
        rates_of_model = (model.bandwidth, model.bandwidth, 0, rates, model.launch, link, model.unified)
        return DeviceProfile(name, *rates_of_model, vector=model.vector)

    def refuses(self, dispatch: Dispatch, target: KernelTarget) -> str | None:
        """Why the library has no function for a dispatch."""
        products = [op for op in dispatch.ops if is_contraction(op)]
        if not products:
            return "it has functions for products and convolutions alone"
        if len(products) > 1:
            return f"its functions are of one product, this is of {len(products)}"
        for op in dispatch.ops:
            if isinstance(op, Reshape) or op in products:
                continue
            if not isinstance(op, Generic) or op.combiner is not None:
                what = f"{op.combiner} over a dim" if isinstance(op, Generic) else op.name
                return f"its vector unit works element by element; there is a {what} with the product"
            if any(isinstance(node, Gather) for node in walk(op.body)):
                return "its vector unit does not gather"
        (product,) = products
        assert isinstance(product, Generic)
        if _factor(product) is None:
            types = " and ".join(dict.fromkeys(v.type.dtype.value for v in product.inputs))
            return f"its products are of i8 or bf16 numbers, not {types}"
        return None

    def compile_dispatch(
        self, dispatch: Dispatch, target: KernelTarget, name: str, parameters: Parameters | None = None
    ) -> CompiledDispatch:
        """A call of the library's ``dispatch`` function with the ops as data."""
        (product,) = (op for op in dispatch.ops if is_contraction(op))
        assert isinstance(product, Generic)
        writer = Writer()
        record = {
            "inputs": [writer.value(v) for v in dispatch.inputs],
            "outputs": [writer.value(v) for v in dispatch.outputs],
            "ops": [writer.op(op) for op in dispatch.ops],
            "values": writer.values(),
            "dims": writer.contracts(),
        }
        call = {"function": "dispatch", "dtype": _factor(product), "data": json.dumps(record)}
        whole, alone = estimate_work(dispatch), estimate_work(_only(dispatch, product))
        symbols = [symbol(writer.dims[str(contract[0])]) for contract in writer.contracts()]
        params = (alone.operations, whole.operations, whole.bytes, *symbols)
        bindings = len(dispatch.inputs) + len(dispatch.outputs)
        entry = EntryPoint(name, bindings, len(params))
        spec = ExecutableSpec(FORMAT, target.name, json.dumps(call).encode(), (entry,))
        return CompiledDispatch(spec, params)


def _only(dispatch: Dispatch, product: Generic) -> Dispatch:
    """The product by itself, to count its work."""
    return Dispatch(dispatch.name, (product,), product.inputs, product.outputs, dispatch.domain)


def _factor(product: Generic) -> str | None:
    """The element type both factors of a product are rounded to before they meet; None for others."""
    body = product.body
    if not isinstance(body, Apply) or body.op != "mul":
        return None
    factors = {_narrowest(arg) for arg in body.args}
    return factors.pop() if len(factors) == 1 else None


def _narrowest(node: Scalar) -> str | None:
    chain = [node.dtype]
    while isinstance(node, Cast):
        node = node.arg
        chain.append(node.dtype)
    if not isinstance(node, Arg):
        return None
    return next((_FACTORS[dtype] for dtype in chain if dtype in _FACTORS), None)


BACKEND = NpuBackend()
