"""Computing in memory as a plug-in: examples/crossbar passes its own tests and the conformance suite."""

from pathlib import Path

from plugins.conftest import install


def test_the_simulated_crossbar_as_an_installed_plugin(tmp_path: Path) -> None:
    plugin = install("crossbar", tmp_path)
    done = plugin.run_tests()
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
