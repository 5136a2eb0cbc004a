"""inv bump: one pin is rewritten, its stack locked again, patches tried; a failure leaves the checkout as it was."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from kiln import bump, fetch, resolve, versions
from kiln.errors import CheckFailed, UserError
from kiln.resolve import Change
from kiln.settings import ROOT, Settings, from_env
from kiln.store import Store

pytestmark = pytest.mark.unit
NEW = "0.7.9"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    root = tmp_path / "checkout"
    for name in ("locks", "patches"):
        shutil.copytree(ROOT / name, root / name)
    for name in ("images", "presets", "templates", "tests"):
        (root / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "versions.yaml", root / "versions.yaml")
    return from_env({"KILN_HOME": str(tmp_path / "home")}, root)


def resolving(settings: Settings, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]) -> None:
    """Let the index offer one more FlashInfer, whose source has these files."""
    from tests.unit.test_patchqueue import sdist

    made = sdist(settings.home.parent / "next", files)
    data = made.read_bytes()

    def lock(place: Settings, stacks: list[str], parts: tuple[str, ...]) -> tuple[Change, ...]:
        file = place.root / "locks" / stacks[0] / "sources.toml"
        sha256 = hashlib.sha256(data).hexdigest()
        entry = (f'    {{name = "flashinfer-python", version = "{NEW}", file = "flashinfer_python-{NEW}.tar.gz", '
                 f'size = {len(data)}, sha256 = "{sha256}"}},\n')  # fmt: skip
        text = file.read_text()
        old = next(line for line in text.splitlines(keepends=True) if "flashinfer-python" in line)
        file.write_text(text.replace(old, entry))
        return (Change(f"locks/{stacks[0]}/sources.toml", "flashinfer-python", "0.7.2", NEW),)

    def bring(place: Settings, store: Store, wanted: list[object]) -> None:
        with made.open("rb") as stream:
            store.add(stream, hashlib.sha256(data).hexdigest(), len(data))

    monkeypatch.setattr(resolve, "lock", lock)
    monkeypatch.setattr(fetch, "fetch", bring)


def snapshot(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_only_the_pin_of_the_stack_changes(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(settings, monkeypatch, {"pyproject.toml": "[project]\n"})
    before = snapshot(settings.root)
    found = bump.bump(settings, {"flashinfer": NEW})
    assert (found.stack, found.pins) == ("current", (bump.Pin("flashinfer", "0.7.2", NEW),))
    after = snapshot(settings.root)
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == {"versions.yaml", "locks/current/sources.toml"}
    old, new = (text["versions.yaml"].decode().splitlines() for text in (before, after))
    assert [(a, b) for a, b in zip(old, new, strict=True) if a != b] == [
        ('      flashinfer: "0.7.2"', f'      flashinfer: "{NEW}"')
    ]
    stacks = versions.load(settings.root / "versions.yaml").stacks
    assert (stacks["current"].components["flashinfer"], stacks["ci"].components["flashinfer"]) == (NEW, "0.7.2")


def test_each_patch_of_the_component_is_told_with_the_next_command(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolving(settings, monkeypatch, {"pyproject.toml": "[project]\n"})
    found = bump.bump(settings, {"flashinfer": NEW}, dry=True)
    labels = [one.patch.label for one in found.outcomes]
    assert labels == [
        "flashinfer/0001-sort-the-generated-fused-moe-units", "flashinfer/0005-no-generation-for-a-built-fmha-v2",
    ]  # fmt: skip
    for one in found.outcomes:
        assert (one.state, found.next_step(one)[:17]) == ("obsolete", "inv patches.drop ")


def test_dry_writes_nothing(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(settings, monkeypatch, {"pyproject.toml": "[project]\n"})
    before = snapshot(settings.root)
    bump.bump(settings, {"flashinfer": NEW}, dry=True)
    assert snapshot(settings.root) == before


def test_a_version_that_does_not_resolve_leaves_everything_as_it_was(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lock(*args: object) -> tuple[Change, ...]:
        raise UserError("no source distribution of flashinfer-python 0.9.9")

    monkeypatch.setattr(resolve, "lock", lock)
    before = snapshot(settings.root)
    with pytest.raises(UserError, match=r"no source distribution(.|\n)*--also COMPONENT=VERSION; nothing was written"):
        bump.bump(settings, {"flashinfer": "0.9.9"})
    assert snapshot(settings.root) == before


@pytest.mark.parametrize(
    ("component", "version", "stack", "message"),
    [
        ("flashinfr", "0.7.3", "", "there is no component 'flashinfr'"),
        ("flashinfer", "main", "", "'main' is not an exact version"),
        ("flashinfer", "0.7.*", "", r"'0\.7\.\*' is not an exact version"),
        ("flashinfer", "0.7.2", "", "flashinfer of stack current is at 0.7.2 already"),
        ("flashinfer", "0.7.3", "curent", "there is no stack 'curent'"),
    ],
)
def test_bad_input_is_refused(settings: Settings, component: str, version: str, stack: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        bump.bump(settings, {component: version}, stack)


def test_a_default_patch_in_conflict_fails_the_command(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    patch = settings.root / "patches/flashinfer/0005-no-generation-for-a-built-fmha-v2.patch"
    named = [line[6:] for line in patch.read_text().splitlines() if line.startswith("--- a/")]
    resolving(settings, monkeypatch, {"pyproject.toml": "[project]\n", **dict.fromkeys(named, "other = 1\n")})
    found = bump.bump(settings, {"flashinfer": NEW}, dry=True)
    with pytest.raises(CheckFailed, match=r"1 default patches do not apply: flashinfer/0005-"):
        bump.require_patches(found)


def test_all_wrong_pins_are_told_at_once(settings: Settings) -> None:
    with pytest.raises(UserError) as caught:
        bump.bump(settings, {"flashinfr": "1", "sglang": "main"})
    assert len(caught.value.problems) == 2


def test_components_that_move_together_are_named_with_also() -> None:
    assert bump.pairs("sglang", "0.5.22", ["flashinfer=0.7.1"]) == {"sglang": "0.5.22", "flashinfer": "0.7.1"}


@pytest.mark.parametrize("text", ["flashinfer", "flashinfer=", "=1", "sglang=0.5.21"])
def test_also_is_a_component_and_its_version(text: str) -> None:
    with pytest.raises(UserError, match="is not another COMPONENT=VERSION"):
        bump.pairs("sglang", "0.5.22", [text])
