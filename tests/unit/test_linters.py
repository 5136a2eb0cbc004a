"""Linters are tests: style, types, layers, Dockerfiles, and what no committed file may hold."""

from __future__ import annotations

import ast
import contextlib
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kiln import reciperules
from kiln.settings import ROOT

pytestmark = pytest.mark.unit

BIN = Path(sys.executable).parent
RENDERED = sorted(ROOT.glob("images/*/rendered/*.Dockerfile"))
SCRIPTS = [file for file in sorted(ROOT.glob("images/*/*")) if file.is_file() and file.suffix != ".yaml"]
PROBES = sorted((ROOT / "kiln" / "probe").rglob("*.py"))
RECIPES = [*RENDERED, *SCRIPTS, *sorted(ROOT.glob("templates/**/*.j2"))]


def tool(*argv: str) -> None:
    """Run one of the environment's own tools and fail with its words."""
    done = subprocess.run([BIN / argv[0], *argv[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.fail(f"{' '.join(argv)}\n{done.stdout}{done.stderr}", pytrace=False)


def committed() -> list[Path]:
    """Return the text files that are in git or would be added."""
    argv = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    files = [ROOT / name for name in names if name]
    return [file for file in files if file.is_file() and b"\0" not in file.read_bytes()[:4096]]


def registry_hosts() -> set[str]:
    """Return the hosts that clients use by default, asked of the clients, so that no file has to name them.

    Docker's is also the name of a Debian package, so it counts with the slash of a reference only.
    """
    from docker.auth import INDEX_NAME
    from pypi_simple import PYPI_SIMPLE_ENDPOINT

    hosts = {PYPI_SIMPLE_ENDPOINT.split("/")[2], f"{INDEX_NAME}/", f"registry-1.{INDEX_NAME}", f"index.{INDEX_NAME}"}
    with contextlib.suppress(ImportError):
        pypi = importlib.import_module("pip._internal.models.index").PyPI
        hosts |= {pypi.netloc, pypi.file_storage_domain}
    return hosts | apt_hosts()


def apt_hosts() -> set[str]:
    """Return the hosts of this machine's apt sources."""
    folder = Path("/etc/apt")
    files = [folder / "sources.list", *folder.glob("sources.list.d/*")]
    text = "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files if file.is_file())
    return set(re.findall(r"^(?!#).*?https?://(?:[^@/\s]*@)?([a-z0-9.-]*[a-z][a-z0-9.-]*)", text, re.MULTILINE))


def test_ruff_finds_nothing() -> None:
    tool("ruff", "check", ".")


def test_the_code_is_formatted() -> None:
    tool("ruff", "format", "--check", ".")


def test_the_types_are_sound() -> None:
    tool("mypy")


def test_the_layers_are_kept() -> None:
    tool("lint-imports", "--no-cache")


def test_there_are_dockerfiles_to_lint() -> None:
    assert RENDERED


@pytest.mark.parametrize("file", RENDERED, ids=lambda file: f"{file.parent.parent.name}/{file.stem}")
def test_hadolint_finds_nothing(file: Path) -> None:
    tool("hadolint", "--config", ".hadolint.yaml", str(file.relative_to(ROOT)))


def test_every_rule_that_hadolint_ignores_has_its_reason() -> None:
    lines = (ROOT / ".hadolint.yaml").read_text(encoding="utf-8").splitlines()
    rules = [index for index, line in enumerate(lines) if re.match(r"\s*- (DL|SC)\d+", line)]
    assert all(lines[index - 1].lstrip().startswith("#") for index in rules)


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_recipe_hides_no_failure_and_takes_nothing_that_moves(file: Path) -> None:
    found = reciperules.problems(str(file.relative_to(ROOT)), file.read_text(encoding="utf-8"))
    assert [f"{problem.source}: {problem.message}" for problem in found] == []


def test_no_committed_file_names_a_registry_or_a_mirror() -> None:
    hosts = registry_hosts()
    pattern = re.compile("|".join(rf"(?<![\w.-]){re.escape(host)}(?![\w-])" for host in sorted(hosts)))
    found = [
        f"{file.relative_to(ROOT)}:{number}: {match[0]}"
        for file in committed()
        for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        for match in pattern.finditer(line)
    ]
    assert found == []


def test_processes_start_only_in_run() -> None:
    """Probes run elsewhere, without kiln: they start their own, each with a time limit (the next test)."""
    pattern = re.compile(
        r"\b(subprocess\.(run|Popen|call|check_\w+)|os\.(system|popen|exec\w+|spawn\w+|posix_spawn\w*))\("
    )
    starters = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "kiln").rglob("*.py")
        if file not in PROBES and pattern.search(file.read_text(encoding="utf-8"))
    }
    assert starters == {"kiln/run.py"}


def waits_for_ever(source: str) -> list[int]:
    """Return the lines of calls that wait for another process or thread, and have no time limit."""
    waiting = {
        "run",
        "call",
        "check_call",
        "check_output",
        "communicate",
        "wait",
        "join",
        "urlopen",
        "create_connection",
    }
    bounded = {"timeout", "timeout_s"}

    def limited(call: ast.Call) -> bool:
        positional = isinstance(call.func, ast.Attribute) and call.func.attr in {"join", "wait"} and call.args
        return bool(positional) or any(word.arg in bounded for word in call.keywords)

    def waits(call: ast.Call) -> bool:
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in waiting:
            return False
        of = ast.unparse(call.func.value)
        return of == "subprocess" if call.func.attr in {"run", "call"} else not of.startswith(("'", '"', "os.path"))

    calls = [one for one in ast.walk(ast.parse(source)) if isinstance(one, ast.Call)]
    untimed = [one for one in calls if waits(one) and not limited(one)]
    shells = [one for one in calls if ast.unparse(one.func) in {"os.system", "os.popen", "os.wait"}]
    shells += [one for one in calls if ast.unparse(one.func) == "os.waitpid" and "WNOHANG" not in ast.unparse(one)]
    return sorted(one.lineno for one in [*untimed, *shells])


@pytest.mark.parametrize("file", PROBES, ids=lambda file: file.stem)
def test_a_probe_waits_for_nothing_without_a_time_limit(file: Path) -> None:
    assert waits_for_ever(file.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "line",
    ["subprocess.run(argv)", "subprocess.check_output(argv)", "child.communicate()", "child.wait()", "thread.join()",
     "os.system('x')", "os.waitpid(pid, 0)", "urllib.request.urlopen(url)", "socket.create_connection(address)"],
)  # fmt: skip
def test_a_wait_without_a_time_limit_is_found(line: str) -> None:
    assert waits_for_ever(f"x = 1\n{line}\n") == [2]


@pytest.mark.parametrize("file", PROBES, ids=lambda file: file.stem)
def test_a_probe_is_written_for_python_3_8(file: Path) -> None:
    """Syntax by the parser; names that came later by their spelling."""
    source = file.read_text(encoding="utf-8")
    ast.parse(source, feature_version=(3, 8))
    later = r"\.remove(prefix|suffix)\(|\.readlink\(\)|zip\([^)]*strict=|StrEnum|is_relative_to|\.pairwise\("
    assert re.findall(later, source) == []


def test_modules_stay_short() -> None:
    lines = {file: len(file.read_text(encoding="utf-8").splitlines()) for file in (ROOT / "kiln").rglob("*.py")}
    assert {str(file.relative_to(ROOT)): count for file, count in lines.items() if count > 400} == {}
