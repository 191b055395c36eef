"""The cache of imported graphs: used for the same program only, with its current weights."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from mansard.dims import Dim  # noqa: E402
from mansard.frontends.pytorch import import_cache, importer  # noqa: E402
from mansard.frontends.pytorch.import_cache import cached_import  # noqa: E402
from mansard.frontends.pytorch.importer import import_torch  # noqa: E402
from mansard.ir.interpreter.graph import interpret  # noqa: E402


class Net(torch.nn.Module):
    """A tied weight, a buffer that is no parameter, a literal, a counter that lives across calls."""

    def __init__(self, scale=2.0):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.register_buffer("shift", torch.full((4,), 0.5), persistent=False)
        self.register_buffer("calls", torch.zeros(4))
        self.scale = scale

    def forward(self, x):
        self.calls.add_(1.0)
        y = self.second(torch.relu(self.first(x))) + self.shift
        return {"y": y * self.scale + torch.tensor([1.0, 2.0, 3.0, 4.0]), "calls": self.calls * 1}


X = torch.linspace(-1, 1, 12).reshape(3, 4)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MANSARD_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def imports(monkeypatch):
    """How often a program was decomposed, that is, not found."""
    seen = []
    whole = importer.decompose
    monkeypatch.setattr(importer, "decompose", lambda program: seen.append(1) or whole(program))
    return seen


def net(**options):
    torch.manual_seed(0)
    return Net(**options).eval()


def files(folder):
    return sorted(p for p in folder.rglob("*") if p.is_file())


def test_the_graph_of_a_program_seen_before_is_the_same(imports):
    first = import_torch(net(), (X,), cache=True)
    second = import_torch(net(), (X,), cache=True)
    assert imports == [1]
    assert second.constants.keys() != first.constants.keys()
    assert str(second) == str(first)
    assert [o.location for o in second.ops] == [o.location for o in first.ops]
    for a, b in zip(interpret(first, [X.numpy()]), interpret(second, [X.numpy()]), strict=True):
        np.testing.assert_array_equal(a, b)


def test_other_weights_give_other_results(imports):
    import_torch(net(), (X,), cache=True)
    other = net()
    with torch.no_grad():
        other.first.weight.mul_(-1.5)
    graph = import_torch(other, (X,), cache=True)
    assert imports == [1]
    expected = other(X)["y"].detach().numpy()
    np.testing.assert_allclose(interpret(graph, [X.numpy()])[0], expected, rtol=1e-5, atol=1e-6)


def untied():
    model = net()
    model.second.weight = torch.nn.Parameter(model.first.weight.detach().clone())
    return model, (X,), {}


def shifted():
    model = net()
    model.shift += 1
    return model, (X,), {}


OTHERS = {
    "constant": lambda: (net(scale=3.0), (X,), {}),
    "shape": lambda: (net(), (X[:2],), {}),
    "names": lambda: (net(), (X,), {"input_names": ["image"]}),
    "dims": lambda: (net(), (X,), {"dynamic_shapes": {"x": {0: Dim("rows", 1, 8)}}}),
    "class": lambda: (torch.nn.Sequential(net()), (X,), {}),
    "type": lambda: (net().double(), (X.double(),), {}),
    "tying": untied,
    "data of constants": shifted,
}


def test_another_program_is_not_mistaken_for_it(imports):
    """Nor for any other of them."""
    import_torch(net(), (X,), cache=True)
    for number, (name, other) in enumerate(OTHERS.items(), 2):
        model, args, options = other()
        imported = import_torch(model, args, cache=True, **options)
        assert imports == [1] * number, name
        again = import_torch(model, args, cache=True, **options)
        assert imports == [1] * number and str(again) == str(imported), name


def test_ranges_of_dims_tell_programs_apart(imports):
    for limit in (8, 16, 16):
        graph = import_torch(net(), (X,), dynamic_shapes={"x": {0: Dim("rows", 1, limit)}}, cache=True)
        assert graph.dims()["rows"].max == limit
    assert imports == [1, 1]


def test_damaged_entries_and_missing_weights_import_again(imports, cache):
    first = import_torch(net(), (X,), cache=True)
    (file,) = files(cache)
    file.write_bytes(file.read_bytes()[:-1])
    assert str(import_torch(net(), (X,), cache=True)) == str(first)
    assert imports == [1, 1]


def test_nothing_is_kept_unless_asked_for(cache):
    import_torch(net(), (X,))
    assert files(cache) == []


def test_operators_of_the_user_are_not_kept(cache):
    @torch.library.custom_op("mansard_test_stored::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)

    class Custom(torch.nn.Module):
        def forward(self, x):
            return twice(x)

    program = torch.export.export(Custom(), (X,))
    assert cached_import(program, {}, None, "Custom") is None
    plain = torch.export.export(net(), (X,))
    assert cached_import(plain, {}, None, "Net") is not None


def test_another_process_finds_the_graph(cache, monkeypatch):
    monkeypatch.setattr(import_cache, "compiler_digest", lambda: "this compiler")
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import test_import_cache as t\n"
        "from mansard.frontends.pytorch import import_cache\n"
        "from mansard.frontends.pytorch.importer import import_torch\n"
        "import_cache.compiler_digest = lambda: 'this compiler'\n"
        "import_torch(t.net(), (t.X,), cache=True)\n"
    )
    import_torch(net(), (X,), cache=True)
    before = files(cache)
    folder = str(Path(__file__).parent)
    subprocess.run([sys.executable, "-c", script, folder], check=True, timeout=300)
    assert files(cache) == before
