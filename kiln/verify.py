"""`inv verify`: is an image what it says? Its bytes, its form, this checkout's locks, and what is attached to it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from filelock import FileLock

from kiln import attached, digests, fixedpoint, labels, oci, reference, result, sbom, signing
from kiln.attached import Attached
from kiln.distribution import Repository
from kiln.errors import CheckFailed, KilnError, UserError
from kiln.oci import Layout
from kiln.plan import Plan
from kiln.reference import Reference
from kiln.registry import Registry
from kiln.settings import Settings

if TYPE_CHECKING:
    from securesystemslib.signer import Key

State = Literal["OK", "FAILED", "NOT_CHECKED"]
IMAGE = ("blobs", "canonical", "plan", "digest")
ATTACHED = ("sbom", "provenance", "signature")
_PARTS = (attached.BILL, attached.PROVENANCE, attached.SIGNATURE)
HEADINGS = ("check", "state", "why")


@dataclass(frozen=True)
class Check:
    """One check and its outcome; `why` is the cause of a failure, or what was looked at."""

    name: str
    state: State
    why: str = ""


@dataclass(frozen=True)
class Report:
    """All checks of one image."""

    subject: str
    digest: str
    checks: tuple[Check, ...]

    @property
    def failed(self) -> tuple[str, ...]:
        return tuple(check.name for check in self.checks if check.state == "FAILED")

    def as_dict(self) -> dict[str, object]:
        """Return the report as plain data."""
        return asdict(self)

    def rows(self) -> list[tuple[str, ...]]:
        """Return the table of checks."""
        return [(check.name, check.state, check.why) for check in self.checks]


def verify(settings: Settings, subject: str, *, key: Path | None, say: Callable[[str], None]) -> Report:
    """Check an image in a registry, or a layout in a folder. Raises UserError if there is none to check."""
    if not Path(subject).is_dir():
        return _in_registry(settings, subject, key, say)
    digest, checks, _ = layout_checks(settings, Path(subject), settings.home)
    why = "a folder has nothing attached: name the image in its registry"
    return Report(subject, digest, (*checks, *(Check(name, "NOT_CHECKED", why) for name in ATTACHED)))


def parse(text: str) -> Reference:
    """Read `HOST[:PORT]/REPOSITORY:TAG` or `…@DIGEST`; with both, the digest counts."""
    found = reference.read(text)
    if found is None:
        raise UserError(
            f"{text!r} is neither a folder nor an image in a registry",
            hint="inv verify HOST[:PORT]/REPOSITORY@sha256:…, or a layout below .kiln/images/; help: inv --help verify",
        )
    return found


def layout_checks(settings: Settings, path: Path, work: Path) -> tuple[str, list[Check], Plan | None]:
    """Check what a layout holds; returns its digest, the checks, and the plan it was built from if that is known.

    Once the blobs are not what they are named, nothing else about them is worth saying.
    """
    try:
        digest = oci.read(path).manifest_digest
        layout = oci.verify(path)
    except KilnError as error:
        broken = Check("blobs", "FAILED", str(error))
        return "", [broken, *(Check(name, "NOT_CHECKED", "the blobs are damaged") for name in IMAGE[1:])], None
    size = sum(layer.size_bytes for layer in layout.layers)
    blobs = Check("blobs", "OK", f"{len(layout.layers) + 2} blobs, {size / 1e6:,.1f} MB, have the digests they go by")
    match = labels.match(settings, labels.read(layout))
    planned = Check("plan", "OK" if match.same else "FAILED", match.why)
    known = _known_digest(settings, match.plan if match.same else None, layout)
    work.mkdir(parents=True, exist_ok=True)
    return digest, [blobs, _canonical(layout, work), planned, known], match.plan if match.same else None


def _canonical(layout: Layout, work: Path) -> Check:
    try:
        found = fixedpoint.test(layout, work)
    except UserError as error:
        return Check("canonical", "FAILED", str(error))
    return Check("canonical", "OK" if found.holds else "FAILED", found.why)


def _known_digest(settings: Settings, plan: Plan | None, layout: Layout) -> Check:
    """Compare with what the same plan gave elsewhere: as it is committed, and as it was built here."""
    if plan is None:
        return Check("digest", "NOT_CHECKED", "the plan it was built from is not known here")
    known = _digests(settings, plan, gzip=fixedpoint.compressions(layout) == {"gzip"})
    others = [f"{where} has {value}" for where, value in known.items() if value != layout.manifest_digest]
    if known:
        return Check("digest", "FAILED" if others else "OK", "; ".join(others) or f"the same in {' and '.join(known)}")
    return Check("digest", "NOT_CHECKED", "nobody built this plan here: inv reproduce")


def _digests(settings: Settings, plan: Plan, *, gzip: bool) -> dict[str, str]:
    built = result.load(settings, plan.id)
    here = (built.gzip if gzip else built.digest) if built else ""
    expected = [one.digest for one in digests.load(settings.root).values() if one.plan == plan.id and not gzip]
    known = {str(digests.FILE): "".join(expected[:1]), "the build here": here}
    return {where: value for where, value in known.items() if value}


def _in_registry(settings: Settings, subject: str, key: Path | None, say: Callable[[str], None]) -> Report:
    where = parse(subject)
    registry = Registry(where.address, say)
    public = signing.load_public(key) if key else None
    try:
        digest = where.digest or _resolved(registry, where)
        with _pulled(settings, registry, where.repository, digest) as layout:
            _, checks, plan = layout_checks(settings, layout, settings.home)
    except CheckFailed as error:
        broken = Check("blobs", "FAILED", str(error))
        rest = (Check(name, "NOT_CHECKED", "the image cannot be pulled") for name in (*IMAGE[1:], *ATTACHED))
        return Report(subject, where.digest, (broken, *rest))
    found = attached.fetch(registry, where.repository, digest)
    return Report(subject, digest, (*checks, *_attached_checks(found, public, digest, plan)))


def _resolved(registry: Registry, where: Reference) -> str:
    """Return the digest of the manifest that a tag names now. Raises UserError, CheckFailed."""
    found = Repository(registry, where.repository).manifest(where.tag)
    if found is None:
        raise UserError(f"{where.repository} has no tag {where.tag}", source=where.address)
    if found.media_type not in oci.MANIFESTS:
        message = f"{where.tag} is {found.media_type or 'of no type'}, not one image"
        raise UserError(message, hint="name the digest of the image for one platform", source=where.address)
    return found.digest


@contextmanager
def _pulled(settings: Settings, registry: Registry, repository: str, digest: str) -> Iterator[Path]:
    """Pull into a layout that is removed again; what a pull that was interrupted has brought is kept for the next."""
    folder = settings.home / "verify" / digest[7:19]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):
        registry.pull(repository, digest, folder)
        try:
            yield folder
        finally:
            shutil.rmtree(folder)


def _attached_checks(found: Attached, key: Key | None, digest: str, plan: Plan | None) -> Iterator[Check]:
    faults = {part: [one.text for one in attached.faults(found, key, digest) if one.part == part] for part in _PARTS}
    bill = faults[attached.BILL]
    if not bill and plan is not None and any(each != sbom.make(plan, digest) for each in found.sboms):
        bill = ["not the one that the locks give for this digest"]
    if bill or plan is not None:
        yield _judged("sbom", bill, "as the locks give it for this digest")
    else:
        yield Check("sbom", "NOT_CHECKED", "about this digest; the plan it was built from is not known here")
    yield _judged(
        "provenance", faults[attached.PROVENANCE], "about this digest" + (", signed by the key" if key else "")
    )
    if key is None:
        yield Check("signature", "NOT_CHECKED", "no key given: --key FILE")
    else:
        yield _judged("signature", faults[attached.SIGNATURE], "by the key, for this digest")


def _judged(name: str, faults: list[str], good: str) -> Check:
    return Check(name, "FAILED" if faults else "OK", "; ".join(faults) or good)
