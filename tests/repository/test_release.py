"""A release: its tag, the version and the changelog agree. And what GitHub reads: workflows, templates."""

import importlib.util
import re
from pathlib import Path

import pytest
import yaml

from gradus import __version__

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")


@pytest.fixture(scope="module")
def release():
    found = importlib.util.spec_from_file_location("release", ROOT / ".ci" / "release.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.fixture
def root(tmp_path):
    """A repository with version 1.2.3, and an older section in its changelog."""
    (tmp_path / "src" / "gradus").mkdir(parents=True)
    (tmp_path / "src" / "gradus" / "__init__.py").write_text('__version__ = "1.2.3"\n')
    return tmp_path


OLDER = "\n## [1.2.2] - 2026-01-01\n\n- Older.\n"


def test_the_notes_are_the_section_of_the_tag_alone(release, root):
    (root / "CHANGELOG.md").write_text(f"# Changelog\n\n## [1.2.3] - 2026-02-03\n\n### Added\n\n- This.\n{OLDER}")
    assert release.notes("v1.2.3", root) == "### Added\n\n- This."


@pytest.mark.parametrize(
    ("tag", "changelog", "message"),
    [
        ("v1.2.4", "## [1.2.3] - 2026-02-03\n\n- This.\n", "the tag must be v1.2.3"),
        ("1.2.3", "## [1.2.3] - 2026-02-03\n\n- This.\n", "the tag must be v1.2.3"),
        ("v1.2.3", "", "must begin with the section"),
        ("v1.2.3", "## [1.2.4] - 2026-02-03\n\n- That.\n\n## [1.2.3] - 2026-02-02\n", "must begin with the section"),
        ("v1.2.3", "## [1.2.3] - unreleased\n\n- This.\n", "has no date"),
        ("v1.2.3", "## [1.2.3] - 2026-02-31\n\n- This.\n", "has no date"),
        ("v1.2.3", "## [1.2.3] - 2026-02-03\n", "is empty"),
    ],
)
def test_a_tag_without_its_section_is_refused_in_one_line(release, root, tag, changelog, message):
    (root / "CHANGELOG.md").write_text(f"# Changelog\n\n{changelog}{OLDER}")
    with pytest.raises(SystemExit, match=message) as ended:
        release.notes(tag, root)
    assert "\n" not in str(ended.value)


def test_the_changelog_begins_with_the_version_of_the_code_and_has_each_once(release):
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## .*$", text, re.MULTILINE)
    found = [re.fullmatch(r"## \[(\d+\.\d+\.\d+)\] - (unreleased|\d{4}-\d\d-\d\d)", line) for line in sections]
    assert all(found), sections
    versions = [each[1] for each in found]
    assert versions[0] == __version__ == release.version_of(ROOT) and len({*versions}) == len(versions)
    assert all(each[2] != "unreleased" for each in found[1:])


# -- workflows ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_commit_with_their_version_in_words(path):
    used = re.findall(r"uses: (.*)", path.read_text(encoding="utf-8"))
    assert used and all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line) for line in used), used


def test_an_action_has_one_commit_in_all_workflows():
    used = {line for path in WORKFLOWS for line in re.findall(r"uses: (.*)", path.read_text(encoding="utf-8"))}
    assert len({line.partition("@")[0] for line in used}) == len(used)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_read_unless_a_job_says_more_ends_by_itself_and_knows_no_secret(path):
    text = path.read_text(encoding="utf-8")
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read"}
    assert "secrets." not in text
    for name, job in workflow["jobs"].items():
        assert "timeout-minutes" in job or name == "publish", name


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_makes_targets_that_exist(path):
    made = re.findall(r"\bmake ([a-z]+)", path.read_text(encoding="utf-8"))
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert made and {*made} <= {*targets}


def test_the_night_has_a_schedule_and_a_tag_starts_a_release():
    triggers = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8"))[True] for path in WORKFLOWS}  # YAML's "on"
    assert triggers["nightly"]["schedule"] and triggers["release"] == {"push": {"tags": ["v*"]}}


# -- templates ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_an_issue_form_has_what_github_asks_for(path):
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert form["name"] and form["description"]
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields)
    assert all(field["attributes"]["label"] for field in fields)
    assert any(field.get("validations", {}).get("required") for field in fields)
