"""The deployment on a cluster of two nodes on this machine: `make ray-example` runs it."""

from __future__ import annotations

import concurrent.futures
import os
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ray = pytest.importorskip("ray", reason="needs Ray in an environment of its own: make ray-example")
openai = pytest.importorskip("openai")
MODEL = os.environ.get("RAY_EXAMPLE_MODEL")
if MODEL is None:
    pytest.skip("needs the folder of a model: make ray-example", allow_module_level=True)

from ray import serve  # noqa: E402  # after the check that it is there
from ray.cluster_utils import Cluster  # noqa: E402

sys.path.insert(0, str(HERE.parent))
from deployment import build_app  # noqa: E402

import mansard  # noqa: E402
from mansard.language import load_lm  # noqa: E402

PORT = 8765
PROMPTS = [[5 + (7 * n) % 200, *range(20, 20 + n)] for n in range(24)]


@pytest.fixture(scope="module")
def expected():
    """What each prompt gives alone, computed in this process."""
    with load_lm(f"{MODEL}/tiny.mansard", tokenizer=MODEL, devices="cpu") as lm:
        return ["".join(token.text for token in lm.generate(prompt, 20)) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def client(expected):
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=1)
    paths = os.pathsep.join([str(HERE.parent), str(Path(mansard.__file__).parents[1])])
    ray.init(address=cluster.address, runtime_env={"env_vars": {"PYTHONPATH": paths}})
    serve.start(http_options={"port": PORT})
    settings = {"artifact": f"{MODEL}/tiny.mansard", "tokenizer": MODEL, "devices": "cpu", "replicas": 2}
    serve.run(build_app({**settings, "name": "tiny", "cpus": 0.5}))
    with openai.OpenAI(base_url=f"http://127.0.0.1:{PORT}/v1", api_key="none", max_retries=0) as client:
        yield client
    serve.shutdown()
    ray.shutdown()
    cluster.shutdown()


def streamed(client, prompt):
    options = {"model": "tiny", "max_tokens": 20, "temperature": 0, "stream": True}
    return "".join(chunk.choices[0].text for chunk in client.completions.create(prompt=prompt, **options))


def test_two_replicas_serve(client):
    replicas = serve.status().applications["default"].deployments["LanguageModelServer"].replica_states
    assert replicas == {"RUNNING": 2}
    assert [model.id for model in client.models.list()] == ["tiny"]


def test_streams_are_those_of_one_process(client, expected):
    with concurrent.futures.ThreadPoolExecutor(12) as threads:
        answers = list(threads.map(lambda prompt: streamed(client, prompt), PROMPTS))
    assert answers == expected


def test_wrong_requests_and_clients_that_leave(client, expected):
    with pytest.raises(openai.BadRequestError, match="temperature=-1 is not in 0 to 100"):
        client.completions.create(model="tiny", prompt="a", temperature=-1)
    for _ in range(8):
        stream = client.completions.create(model="tiny", prompt=[9], max_tokens=120, stream=True)
        next(iter(stream))
        stream.close()
    time.sleep(0.2)
    assert streamed(client, PROMPTS[3]) == expected[3]
