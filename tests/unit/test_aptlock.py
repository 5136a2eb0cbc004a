"""Debian resolution against a small signed archive made here, with the host's real apt."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kiln import aptlock, aptmirror, debrepo, settings
from kiln.errors import UserError
from kiln.intent import Base
from kiln.locks import Deb
from kiln.run import run
from kiln.settings import Settings
from kiln.store import Store

pytestmark = pytest.mark.unit

SID = Base(suite="sid")
PACKAGES = {
    "base-files": "Essential: yes\nPre-Depends: awk",
    "mawk": "Provides: awk",
    "tool": "Depends: libtool (>= 2)\nRecommends: docs",
    "libtool": "",
    "docs": "",
    "broken": "Depends: nowhere",
}


def _pack(folder: Path, pool: str, name: str, version: str, extra: str) -> Path:
    tree = folder / f"{name}-{version}"
    (tree / "DEBIAN").mkdir(parents=True)
    head = f"Package: {name}\nVersion: 1:{version}\nArchitecture: amd64\nMaintainer: n <n@test>\nDescription: d\n"
    (tree / "DEBIAN/control").write_text(head + (f"{extra}\n" if extra else ""))
    path = folder / pool / f"{name}_{version}_amd64.deb"
    path.parent.mkdir(parents=True, exist_ok=True)
    run(["dpkg-deb", "--root-owner-group", "--build", tree, path])
    return path


def _archive(root: Path, home: Path, suite: str, pool: str, version: str, packages: dict[str, str]) -> None:
    """Write a signed archive of one suite; every package of it has the same version."""
    index = root / f"dists/{suite}/main/binary-amd64"
    index.mkdir(parents=True)
    blocks = []
    for name, extra in packages.items():
        path = _pack(root, pool, name, version, extra)
        data = path.read_bytes()
        tail = f"Filename: {path.relative_to(root)}\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n"
        blocks.append(debrepo.control(path) + tail)
    text = "\n".join(blocks)
    (index / "Packages").write_text(text)
    entry = f" {hashlib.sha256(text.encode()).hexdigest()} {len(text)} main/binary-amd64/Packages\n"
    date = "Date: Thu, 01 Oct 2026 12:00:00 UTC"
    head = f"Origin: Debian\nCodename: {suite}\n{date}\nArchitectures: amd64\nComponents: main\nSHA256:\n"
    (root / "Release").write_text(head + entry)
    run(["gpg", "--homedir", home, "--batch", "--clearsign", "-o", root / f"dists/{suite}/InRelease", root / "Release"])


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A signed archive and its security archive; the public key lies beside them as `key.gpg`."""
    if not (shutil.which("gpg") and shutil.which("apt-get")):
        pytest.skip("needs gpg and apt-get")
    folder = tmp_path_factory.mktemp("mirror")
    home = folder / "gnupg"
    home.mkdir(mode=0o700)
    key = ["gpg", "--homedir", home, "--batch", "--passphrase", "", "--quick-generate-key", "n@test.invalid", "rsa3072"]
    run([*map(str, key), "sign"])
    run(["gpg", "--homedir", home, "--batch", "-o", folder / "key.gpg", "--export"])
    _archive(folder / "debian", home, "sid", "pool/main", "2.0+b1", PACKAGES)
    fixes = {"base-files": PACKAGES["base-files"]}
    _archive(folder / "debian-security", home, "sid-security", "pool/updates/main", "1.9", fixes)
    yield folder / "debian"
    run(["gpgconf", "--homedir", home, "--kill", "all"])


@pytest.fixture
def chosen(mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(aptlock, "KEYRING", mirror.parent / "key.gpg")
    return settings.from_env({"KILN_HOME": str(tmp_path / "home"), "KILN_APT_MIRROR": mirror.as_uri()})


def test_the_essential_set_and_the_names_are_resolved_without_what_is_recommended(
    chosen: Settings, mirror: Path
) -> None:
    found = aptlock.resolve(chosen, SID, ["tool"])
    assert [deb.name for deb in found.debs] == ["base-files", "libtool", "mawk", "tool"]
    assert {deb.version for deb in found.debs} == {"1:2.0+b1"}
    assert found.epoch == 1790856000
    tool = found.debs[-1]
    data = (mirror / "pool/main/tool_2.0+b1_amd64.deb").read_bytes()
    assert tool == Deb(
        "tool", "1:2.0+b1", "tool_2.0+b1_amd64.deb", len(data), hashlib.sha256(data).hexdigest(), "amd64",
        "pool/main/tool_2.0+b1_amd64.deb", "sid", 1790856000,
    )  # fmt: skip
    assert list(chosen.home.iterdir()) == []


def test_an_older_package_of_the_security_archive_does_not_win(chosen: Settings) -> None:
    found = aptlock.resolve(chosen, Base.model_validate({"suite": "sid", "security": "yes"}), ["tool"])
    assert {deb.version for deb in found.debs} == {"1:2.0+b1"}


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["tool", "vim", "emacs"], "sid main has no package emacs, vim"),
        (["broken"], "the Debian packages do not resolve in sid:"),
    ],
)
def test_what_does_not_resolve_is_named(chosen: Settings, names: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        aptlock.resolve(chosen, SID, names)
    assert message in str(caught.value)
    assert "hint: see apt: in images/*/image.yaml" in str(caught.value)


def test_an_archive_signed_with_another_key_is_refused(
    chosen: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "none.gpg").touch()
    monkeypatch.setattr(aptlock, "KEYRING", tmp_path / "none.gpg")
    with pytest.raises(UserError, match="apt-get update of sid failed"):
        aptlock.resolve(chosen, SID, ["tool"])


def test_a_host_without_debian_s_keys_is_told_which_package_has_them(
    chosen: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aptlock, "KEYRING", tmp_path / "none.gpg")
    with pytest.raises(UserError, match="hint: apt-get install debian-archive-keyring"):
        aptlock.resolve(chosen, SID, ["tool"])


def test_a_base_that_is_an_image_has_no_debian_lock(chosen: Settings) -> None:
    assert aptlock.resolve(chosen, Base(image="x", digest="sha256:0"), ["tool"]) == aptlock.AptResolution((), 0)


def test_the_flat_repository_holds_the_locked_packages_and_apt_reads_it(
    chosen: Settings, mirror: Path, tmp_path: Path
) -> None:
    debs = aptlock.resolve(chosen, SID, ["tool"]).debs
    store = Store(tmp_path / "store")
    for deb in debs:
        store.add(mirror / deb.path, deb.sha256, deb.size)
    repo = debrepo.write_flat_repo(debs, store, tmp_path / "repo")
    assert sorted(path.name for path in repo.iterdir()) == sorted(["Packages", "Release", *(deb.file for deb in debs)])
    assert "Date: Thu, 01 Oct 2026 12:00:00 GMT" in (repo / "Release").read_text()
    read = {fields["Package"]: fields["SHA256"] for fields in aptlock.stanzas((repo / "Packages").read_text())}
    assert read == {deb.name: deb.sha256 for deb in debs}


@pytest.mark.parametrize("data", [b"", b"text", b"!<arch>\nshort", b"!<arch>\n" + b"debian-binary".ljust(58) + b"`\n"])
def test_a_file_that_is_no_package_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.deb").write_bytes(data)
    with pytest.raises(UserError, match=r"x\.deb is no Debian package: "):
        debrepo.control(tmp_path / "x.deb")


HOST = """\
bookworm|main|http://deb.test/debian/|Debian
bookworm-updates|main|http://deb.test/debian/|Debian
bookworm-security|main|http://deb.test/debian-security/|Debian
bookworm|main|http://vendor.test/repo/|Vendor
nodistro|main|http://node.test/|
"""


@pytest.mark.parametrize(
    ("targets", "main", "security"),
    [
        (HOST, "http://deb.test/debian", "http://deb.test/debian-security"),
        (HOST.replace("bookworm", "trixie"), "http://deb.test/debian", "http://deb.test/debian-security"),
        (HOST.replace("|Debian", "|"), "http://deb.test/debian", "http://deb.test/debian-security"),
        ("noble|main|http://ubuntu.test/ubuntu/|Ubuntu\n", "", ""),
        ("", "", ""),
    ],
)
def test_only_debian_s_own_sources_of_the_host_are_used(targets: str, main: str, security: str) -> None:
    assert aptmirror.pick(targets, "bookworm") == aptmirror.Mirrors(main, security)


def test_a_host_without_a_debian_mirror_is_told_what_to_set() -> None:
    with pytest.raises(UserError, match="no Debian mirror for bookworm\n  hint: set KILN_APT_MIRROR"):
        aptmirror.require("", "bookworm")
