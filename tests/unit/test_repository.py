"""The repository keeps its own rules: layout, import direction, the wheel's contents, documents that lead somewhere."""

import ast
import importlib.metadata
import re
import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from flowctl.dsl.states import BOOT_SOURCES, RUN_SOURCES, STEP_SOURCES, TRIAL_SOURCES, State

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("dsl", "broker", "workers", "storage")
SOURCE = {name: ROOT / name for name in PACKAGES} | {"flowctl": ROOT / "src/flowctl"}
DATA = ("*.lua", "*.json")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
DECISIONS = sorted((ROOT / "docs/decisions").glob("D[0-9]*.md"))


def python_files(package: str) -> list[Path]:
    """Return the Python files of a package; a recursive glob does not follow the facade's links."""
    return sorted(SOURCE[package].rglob("*.py"))


def module_of(package: str, path: Path) -> str:
    """Return a source file's place inside the wheel."""
    inside = path.relative_to(SOURCE[package]).as_posix()
    return f"flowctl/{inside}" if package == "flowctl" else f"flowctl/{package}/{inside}"


def imports(path: Path) -> Iterator[str]:
    """Yield what a file imports, as dotted names, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def importers(packages: tuple[str, ...], names: set[str]) -> list[str]:
    """Return "file imports name" for each file of the packages that imports one of the top-level names."""
    return [
        f"{path.relative_to(ROOT)} imports {name}"
        for package in packages
        for path in python_files(package)
        for name in imports(path)
        if name.split(".")[0] in names
    ]


def code_of(path: Path) -> str:
    """Return a file's code without its comments, laid out anew."""
    return ast.unparse(ast.parse(path.read_text(), str(path)))


# Layout


@pytest.mark.parametrize("name", [*PACKAGES, "examples"])
def test_folder_is_seen_through_a_relative_link(name: str) -> None:
    link = ROOT / "src/flowctl" / name

    assert link.is_symlink()
    assert str(link.readlink()) == f"../../{name}"
    assert link.resolve() == ROOT / name


@pytest.mark.parametrize("name", PACKAGES)
def test_package_init_holds_no_code(name: str) -> None:
    body = ast.parse((ROOT / name / "__init__.py").read_text()).body

    assert [node for node in body if not isinstance(node, ast.Expr)] == []


def test_every_package_folder_has_an_init() -> None:
    folders = {path.parent for name in SOURCE for path in python_files(name)}

    assert [folder for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def test_test_files_have_unique_names_and_no_packages() -> None:
    names = Counter(path.name for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py")

    assert [name for name, count in names.items() if count > 1] == []
    assert list((ROOT / "tests").rglob("__init__.py")) == []
    assert not (ROOT / "conftest.py").exists()


def test_nothing_is_left_for_later_in_the_source() -> None:
    marks = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" * 3)) + r")\b")
    files = (
        [path for name in SOURCE for path in python_files(name)] + DOCUMENTS + [*ROOT.glob("broker/scripts/**/*.lua")]
    )

    assert [str(path.relative_to(ROOT)) for path in files if marks.search(path.read_text())] == []


# Import direction; the layers themselves are a contract of import-linter in pyproject.toml


def test_only_the_broker_imports_redis() -> None:
    others = tuple(name for name in SOURCE if name != "broker")

    assert importers(others, {"redis"}) == []


def test_the_language_knows_no_server_no_clock_and_no_environment() -> None:
    impure = {"redis", "celery", "kombu", "fsspec", "psutil", "time", "socket", "subprocess"}
    ambient = re.compile(r"\bos\.(environ|getenv)\b|\b(datetime|date)\.(now|utcnow|today)\b")

    assert importers(("dsl",), impure) == []
    assert [path.name for path in python_files("dsl") if ambient.search(code_of(path))] == []


def test_what_joins_broker_and_storage_imports_no_celery() -> None:
    found = importers(("workers",), {"celery", "kombu"})

    assert [line for line in found if line.startswith("workers/runs/")] == []


def test_nothing_below_imports_the_facade() -> None:
    upper = ("flowctl.cli", "flowctl.render", "flowctl.client")
    facade = {f"flowctl.{path.stem}" for path in (ROOT / "src/flowctl").glob("*.py")} | {"flowctl"}

    found = [
        f"{path.relative_to(ROOT)} imports {name}"
        for package in PACKAGES
        for path in python_files(package)
        for name in imports(path)
        if name in facade or name.startswith(upper)
    ]

    assert found == []


@pytest.mark.parametrize("module", ["flowctl.workers.session", "flowctl.workers.trial_main"])
def test_a_trial_process_loads_no_server_library(module: str) -> None:
    program = f"import {module}, sys; print(*sorted(name.split('.')[0] for name in sys.modules))"

    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)

    assert loaded.returncode == 0, loaded.stderr
    assert {"celery", "redis", "kombu", "fsspec"} & set(loaded.stdout.split()) == set()


# The wheel


def built_wheel_names(folder: Path) -> set[str]:
    """Build sdist and wheel from a copy of the checkout; return the names in the wheel."""
    copy = folder / "copy"
    ignored = shutil.ignore_patterns(
        ".git", ".venv", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis"
    )
    shutil.copytree(ROOT, copy, symlinks=True, ignore=ignored)
    command = [sys.executable, "-m", "build", "--outdir", str(folder / "dist"), str(copy)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout[-2000:] + made.stderr[-2000:]
    with zipfile.ZipFile(next((folder / "dist").glob("*.whl"))) as wheel:
        return {name for name in wheel.namelist() if not name.endswith("/")}


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names in the installed wheel, or, where the checkout itself is installed, in one that is built now."""
    installed = {str(name) for name in importlib.metadata.files("flowctl-celery") or []}
    if "flowctl/__init__.py" not in installed:
        return built_wheel_names(tmp_path_factory.mktemp("wheel"))
    scripts = {name for name in installed if name.startswith("..") or "__pycache__" in name}
    return installed - scripts


@pytest.mark.timeout(300)
def test_wheel_holds_the_sources_and_nothing_else(wheel_names: set[str]) -> None:
    examples = {f"flowctl/examples/{path.name}" for path in (ROOT / "examples").glob("*.py")}
    expected = (
        {"flowctl/py.typed"}
        | examples
        | {
            module_of(package, path)
            for package, folder in SOURCE.items()
            for pattern in ("*.py", *DATA)
            for path in folder.rglob(pattern)
        }
    )

    assert {name for name in wheel_names if ".dist-info/" not in name} == expected


@pytest.mark.timeout(300)
def test_wheel_takes_no_general_name_in_site_packages(wheel_names: set[str]) -> None:
    tops = {name.split("/")[0] for name in wheel_names}

    assert {top for top in tops if not top.endswith(".dist-info")} == {"flowctl"}


def test_license_is_whole_and_declared() -> None:
    text = (ROOT / "LICENSE").read_text()

    assert "Apache License" in text and "END OF TERMS AND CONDITIONS" in text
    assert 'license = "Apache-2.0"' in (ROOT / "pyproject.toml").read_text()


# Make


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_makefile_has_the_targets_people_are_told_of() -> None:
    named = {name for path in DOCUMENTS for name in re.findall(r"`make ([a-z]+)`", path.read_text())}

    assert named | {"demo", "test", "check", "bench", "acceptance", "chaos", "wheel", "clean", "help"} <= make_targets()


def test_ci_runs_the_test_command_of_the_readme() -> None:
    ci = ROOT / ".ci/run"

    assert ci.stat().st_mode & 0o111
    assert "exec make test" in ci.read_text()
    assert "make test" in (ROOT / "README.md").read_text()


# Documents


def anchors(path: Path) -> set[str]:
    """Return the anchors of a document's headings, as code hosts make them."""
    heads = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_of_a_document_lead_somewhere(document: Path) -> None:
    lost = []
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        path = (document.parent / name).resolve() if name else document
        if not path.exists() or (anchor and anchor not in anchors(path)):
            lost.append(target)

    assert lost == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_that_a_document_names_exist(document: Path) -> None:
    named = re.findall(
        r"`((?:tests|examples|benchmarks|broker|dsl|storage|workers|src)/[\w./-]+\.\w+)`", document.read_text()
    )

    assert [name for name in named if not (ROOT / name).exists()] == []


def test_tests_that_a_document_names_exist() -> None:
    named = {name for path in DOCUMENTS for name in re.findall(r"`(test_\w+)`", path.read_text())}
    known = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in [path.stem, *re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)]
    }

    assert sorted(named - known) == []


def test_no_document_tells_people_to_install_a_stranger() -> None:
    wrong = re.compile(r"pip install (?:[-\w]+ )*['\"]?" + "flow" + r"ctl(?!-celery|_celery)\b")

    assert [path.name for path in DOCUMENTS if wrong.search(path.read_text())] == []


def test_each_decision_has_a_record_of_the_same_shape() -> None:
    heads = ["Problem", "Decision", "Alternatives", "Consequences", "Shown by"]

    numbers = [int(path.name[1:3]) for path in DECISIONS]
    shapes = {path.name: re.findall(r"^## (.*)$", path.read_text(), re.MULTILINE) for path in DECISIONS}

    assert numbers == list(range(1, 20))
    assert {name: found for name, found in shapes.items() if found != heads} == {}


def test_dependencies_are_each_given_a_reason() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    block = project[project.index("dependencies = [") : project.index("[project.scripts]")]
    names = set(re.findall(r'"([A-Za-z][\w-]*)[^"]*"', block))

    reasons = (ROOT / "docs/decisions/dependencies.md").read_text()

    assert sorted(name for name in names if f"`{name}`" not in reasons) == []


def test_the_shown_files_stay_short() -> None:
    lengths = {path.name: len(path.read_text().splitlines()) for path in (ROOT / "examples").glob("*.py")}

    assert {"digits.py", "pipeline.py"} <= set(lengths)
    assert [name for name, length in lengths.items() if length > 100] == []


# The tables of states


@pytest.mark.parametrize(
    ("heading", "table"),
    [
        ("Trial, and stage", TRIAL_SOURCES),
        ("Step", STEP_SOURCES),
        ("Run", RUN_SOURCES),
        ("Boot of a worker", BOOT_SOURCES),
    ],
)
def test_documented_states_are_those_of_the_code(heading: str, table: Mapping[State, frozenset[State]]) -> None:
    text = (ROOT / "docs/states.md").read_text()
    section = text.split(f"## {heading}\n")[1].split("\n## ")[0]

    rows = re.findall(r"^\| `(\w+)` \|([^|]*)\|", section, re.MULTILINE)

    written = {to: sorted(re.findall(r"`(\w+)`", origin)) for to, origin in rows}
    assert written == {str(to): sorted(map(str, origin)) for to, origin in table.items()}
