"""The docs keep up with the code: errors, environment variables, commands, links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.paths import ROOT

from mansard import errors
from mansard.cli.main import app

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("**/*.md"))]
# Names in the native core that look like variables: its include guards.
NOT_VARIABLES = re.compile(r"MANSARD_\w+_H")


def variables(text: str) -> set[str]:
    return {name for name in re.findall(r"\bMANSARD_[A-Z0-9_]+\b", text) if not NOT_VARIABLES.fullmatch(name)}


def test_every_error_is_documented() -> None:
    page = (ROOT / "docs/errors.md").read_text()
    missing = [name for name in errors.__all__ if f"`{name}`" not in page and f".{name}`" not in page]
    assert missing == []


def test_documented_variables_are_those_in_use() -> None:
    documented = variables((ROOT / "docs/environment.md").read_text())
    sources = [
        *ROOT.glob("mansard/**/*.py"), *ROOT.glob("src/**/*.[ch]"),
        ROOT / "tools/setup_env.sh", ROOT / "tests/conftest.py", ROOT / "tests/support/vulkan_support.py",
        ROOT / "tests/devices/test_request_stress.py", ROOT / "tests/devices/test_signal_stress.py",
        ROOT / "tests/devices/test_soak.py", ROOT / "tests/serving/test_soak.py",
    ]  # fmt: skip
    used = set().union(*(variables(source.read_text()) for source in sources))
    assert documented == used


def test_every_command_is_documented() -> None:
    page = (ROOT / "docs/cli.md").read_text()
    names = [command.name for command in app.registered_commands]
    assert len(names) >= 7
    assert [name for name in names if f"**`mansard {name}" not in page] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    broken = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert broken == []


def test_files_to_extend_exist() -> None:
    """Every file that the page names is there; capitals stand for what one adds."""
    page = (ROOT / "docs/extending.md").read_text()
    named = set(re.findall(r"`((?:mansard|tests)/[\w/]+(?:\.py|/))`", page))
    assert len(named) >= 20
    fixed = [name for name in named if not re.search(r"[A-Z]", name)]
    assert [name for name in fixed if not (ROOT / name).exists()] == []
    templates = [
        name.rpartition("/")[0].replace("FOLDER", "*").replace("KIND", "*") for name in named - set(fixed)
    ]
    assert [folder for folder in templates if not list(ROOT.glob(folder))] == []


def test_the_glossary_points_at_what_exists() -> None:
    rows = [line.split("|") for line in (ROOT / "docs/glossary.md").read_text().splitlines() if "| `" in line]
    places = [path for row in rows for path in re.findall(r"`((?:mansard|src)/[\w/.]+)`", row[-2])]
    assert len(places) == len(rows) > 80
    assert [place for place in places if not (ROOT / place).exists()] == []


def test_the_glossary_defines_the_terms_of_the_architecture() -> None:
    glossary = (ROOT / "docs/glossary.md").read_text().lower()
    terms = re.findall(r"^\*\*([A-Z][\w ]+)\.\*\*", (ROOT / "docs/architecture.md").read_text(), re.MULTILINE)
    assert len(terms) >= 9
    missing = [word for term in terms for word in term.lower().split(" and ") if word not in glossary]
    assert missing == []
