"""`inv promote`: tag a digest in its registry once its receipts satisfy the policy in versions.yaml."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass

from kiln import labels, oci, policy, receipts, reference, versions
from kiln.distribution import Manifest, Repository
from kiln.errors import CheckFailed, UserError
from kiln.policy import Clause
from kiln.reference import Reference
from kiln.registry import Registry
from kiln.settings import Settings
from kiln.versions import Promotion

HEADINGS = ("", "the policy asks for", "found")
# The tags of inv build end in the plan's id: such a one never names another image.
_OWN = re.compile(r"-g[0-9a-f]{12}(-gz)?$")
# Below such tags lie signatures and lists of what is attached.
_TAKEN = "sha256-"
Announce = Callable[[str], None]


@dataclass(frozen=True)
class Tagged:
    """One tag, and the digest that it named before; empty for a new tag."""

    tag: str
    before: str


@dataclass(frozen=True)
class Promoted:
    """What was, or with `--dry` would be, done, and which clauses allow it."""

    name: str
    digest: str
    gpu: str
    clauses: tuple[Clause, ...]
    tags: tuple[Tagged, ...]
    dry: bool

    def rows(self) -> list[tuple[str, ...]]:
        """Return the table of clauses."""
        return [("✓" if one.met else "✗", one.demand, one.why) for one in self.clauses]

    def as_dict(self) -> dict[str, object]:
        """Return it for machines."""
        return asdict(self)

    @property
    def unmet(self) -> tuple[Clause, ...]:
        return tuple(one for one in self.clauses if not one.met)


def promote(settings: Settings, image: str, tags: Iterable[str], *, now: datetime.datetime, say: Announce,
            dry: bool = False) -> Promoted:  # fmt: skip
    """Tag an image in its registry. `image`: HOST[:PORT]/REPOSITORY@DIGEST.

    Without `tags` it gets the one that it was built under, without the plan's id. Raises UserError for a name, tag or
    digest that is not there, CheckFailed with every clause of the policy that is not met.
    """
    rules, where = _policy(settings), _parsed(image)
    repository = Repository(Registry(where.address, say), where.repository)
    manifest = _manifest(repository, where)
    described = _labels(repository, manifest)
    gpu = described.get("kiln.gpu", "")
    found = policy.clauses(rules, gpu, where.digest, receipts.load_all(settings), now)
    name = f"{where.address}/{where.repository}@{where.digest}"
    wanted = tuple(dict.fromkeys(tags)) or (_default_tag(described, manifest, name),)
    moves = tuple(_move(repository, tag, where.digest) for tag in wanted)
    promoted = Promoted(name, where.digest, gpu, found, moves, dry)
    require(promoted)
    if not dry:
        for tag in wanted:
            _put(repository, tag, manifest)
    return promoted


def require(found: Promoted) -> None:
    """Raise CheckFailed with every unmet clause and the next command."""
    if found.unmet:
        lines = "".join(f"\n  ✗ {one.demand}: {one.why}" for one in found.unmet)
        hint = f"inv smoke --hosts NODE,… --image {found.name}, then inv promote {found.name}"
        raise CheckFailed(
            f"{found.digest} is not promoted, its receipts do not satisfy the policy:{lines}\n  hint: {hint}"
        )


def _policy(settings: Settings) -> Promotion:
    loaded = versions.load(settings.root / "versions.yaml")
    if loaded.promotion is None:
        raise UserError("there is no promotion policy", source=loaded.at(""), hint="docs/promote.md shows one")
    return loaded.promotion


def _parsed(text: str) -> Reference:
    found = reference.read(text)
    if found is None or not found.digest:
        hint = "inv promote HOST[:PORT]/REPOSITORY@sha256:…, the line `pushed` of inv build"
        raise UserError(f"{text!r} does not name an image by its digest", hint=hint)
    return found


def _manifest(repository: Repository, where: Reference) -> Manifest:
    found = repository.manifest(where.digest)
    if found is None:
        raise UserError(f"{where.repository} holds no {where.digest}", source=where.address, hint="inv push")
    if found.media_type not in oci.MANIFESTS:
        message = f"{where.digest} is {found.media_type or 'of no type'}, not one image"
        raise UserError(message, source=where.address, hint="name the digest of the image for one platform")
    return found


def _labels(repository: Repository, manifest: Manifest) -> dict[str, str]:
    with oci.well_formed(f"manifest {manifest.digest}"):
        config = str(manifest.fields()["config"]["digest"])
    return labels.of_config(repository.blob(config))


def _default_tag(described: Mapping[str, str], manifest: Manifest, name: str) -> str:
    tag = described.get("org.opencontainers.image.ref.name", "")
    if not _OWN.search(tag):
        raise UserError(f"{name} does not say what it was built as", hint="--tag NAME")
    layers = [str(layer.get("mediaType")) for layer in manifest.fields().get("layers", ())]
    gzip = any(oci.LAYERS.get(kind) == "gzip" for kind in layers)
    return _OWN.sub("", tag) + ("-gz" if gzip else "")


def _move(repository: Repository, tag: str, digest: str) -> Tagged:
    """Look what a tag names now. Raises UserError for one that must not move."""
    if not reference.TAG.fullmatch(tag) or tag.startswith(_TAKEN):
        raise UserError(f"{tag!r} is not a tag", hint="up to 128 letters, digits, dots, dashes and underscores")
    now = repository.manifest(tag)
    before = now.digest if now else ""
    if before not in ("", digest) and _OWN.search(tag):
        hint = "the tag of a build never moves: choose another one"
        raise UserError(f"the tag {tag} names {before} already", hint=hint, source=repository.shown)
    return Tagged(tag, before)


def _put(repository: Repository, tag: str, manifest: Manifest) -> None:
    """Store the same bytes under another name, and look that they are there."""
    repository.put_manifest(tag, manifest.data, manifest.media_type)
    now = repository.manifest(tag)
    if now is None or now.digest != manifest.digest:
        raise CheckFailed(f"{repository.shown}: the tag {tag} names {now.digest if now else 'nothing'} after the push")
