"""The bill of materials of an image: CycloneDX 1.6, made from the locks; the same plan and digest, the same bytes."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from kiln import oci
from kiln.plan import BUILD_TOOLS, RECIPE

if TYPE_CHECKING:
    from cyclonedx.model import HashType, Property
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, Pedigree
    from packageurl import PackageURL

    from kiln.locks import Artifact, Deb, Wheel
    from kiln.plan import Plan

MEDIA_TYPE = "application/vnd.cyclonedx+json"
_BUILD_TOOL = "took part in the build, is not in the image"
_TEST_TOOL = "looked at the finished image, is not in it"


def make(plan: Plan, digest: str) -> bytes:
    """Return the bill of the image with this manifest digest: canonical JSON, serial number derived from the rest."""
    from cyclonedx.output.json import JsonV1Dot6

    document: dict[str, Any] = json.loads(JsonV1Dot6(_bom(plan, digest)).output_as_string())
    del document["serialNumber"]
    content = hashlib.sha256(oci.canonical_json(document)).hexdigest()
    return oci.canonical_json({**document, "serialNumber": uuid.uuid5(uuid.NAMESPACE_OID, content).urn})


def subject(document: dict[str, Any]) -> str:
    """Return the digest of the image that a bill is about, or "" if it names none."""
    try:
        hashes = {each["alg"]: each["content"] for each in document["metadata"]["component"]["hashes"]}
        return f"sha256:{hashes['SHA-256']}"
    except (KeyError, TypeError):
        return ""


def _bom(plan: Plan, digest: str) -> Bom:
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.model.lifecycle import LifecyclePhase, PredefinedLifecycle
    from cyclonedx.model.tool import ToolRepository

    image = _image(plan, digest)
    inside = [*_debs(plan), *_external_base(plan), *_wheels(plan), *_sources(plan)]
    metadata = BomMetaData(
        component=image,
        timestamp=datetime.fromtimestamp(plan.epoch, UTC),
        lifecycles=[PredefinedLifecycle(phase=LifecyclePhase.BUILD)],
        tools=ToolRepository(components=[Component(name="kiln", version=RECIPE, type=ComponentType.APPLICATION)]),
    )
    bom = Bom(serial_number=uuid.UUID(int=0), metadata=metadata, components=[*inside, *_tools(plan)])
    bom.register_dependency(image, inside)
    return bom


def _image(plan: Plan, digest: str) -> Component:
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    return Component(
        name=plan.repository,
        version=plan.tag,
        type=ComponentType.CONTAINER,
        bom_ref=digest,
        purl=PackageURL("oci", None, plan.image, digest, {"arch": "amd64", "tag": plan.tag}),
        hashes=_hashes(digest.removeprefix("sha256:")),
        properties=_properties(**{f"label:{name}": value for name, value in plan.labels().items() if value}),
    )


def _debs(plan: Plan) -> Iterator[Component]:
    if not plan.stack.base.suite:
        return
    for deb in plan.lock.debs:
        yield _file(deb, _deb_purl(deb), image=plan.chain[0].name, file=deb.path)


def _deb_purl(deb: Deb) -> PackageURL:
    from packageurl import PackageURL

    return PackageURL("deb", "debian", deb.name, deb.version, {"arch": deb.arch, "distro": deb.suite})


def _external_base(plan: Plan) -> Iterator[Component]:
    from cyclonedx.model.component import Component, ComponentType

    base = plan.stack.base
    if base.image and base.digest:
        yield Component(
            name=base.image, version=base.digest, type=ComponentType.CONTAINER, bom_ref=base.digest,
            hashes=_hashes(base.digest.removeprefix("sha256:")), properties=_properties(image=plan.chain[0].name),
        )  # fmt: skip


def _wheels(plan: Plan) -> Iterator[Component]:
    for wheel in (wheel for image in plan.chain for wheel in image.wheels):
        if plan.patches_of(wheel):
            yield _patched(plan, wheel, plan.installed(wheel).version, image=wheel.image)
        else:
            yield _file(wheel, _pypi_purl(wheel.name, wheel.version), image=wheel.image, file=wheel.file)


def _sources(plan: Plan) -> Iterator[Component]:
    """What is built from source."""
    modules = " ".join(module.name for module in plan.modules)
    for image in (image for image in plan.chain if "sources" in image.inputs):
        for source in plan.lock.sources:
            version = f"{source.version}+{plan.local_version}"
            yield _patched(plan, source, version, image=image.name, modules=modules)


def _patched(plan: Plan, upstream: Artifact, version: str, **properties: str) -> Component:
    """Our version, with the upstream release as ancestor and the patches between them."""
    from cyclonedx.model.component import Component

    purl = _pypi_purl(upstream.name, version)
    patches = {f"patch:{patch.label}": f"sha256:{patch.sha256}" for patch in plan.patches_of(upstream)}
    return Component(
        name=upstream.name, version=version, purl=purl, bom_ref=str(purl), pedigree=_pedigree(plan, upstream),
        properties=_properties(**properties, **patches),
    )  # fmt: skip


def _pedigree(plan: Plan, upstream: Artifact) -> Pedigree:
    from cyclonedx.model import XsUri
    from cyclonedx.model.component import Diff, Patch, PatchClassification, Pedigree

    kinds = {"upstream": PatchClassification.CHERRY_PICK, "backport": PatchClassification.BACKPORT}
    patches = [
        Patch(
            type=kinds.get(patch.origin.partition(",")[0].lower(), PatchClassification.UNOFFICIAL),
            diff=Diff(url=XsUri(f"urn:sha256:{patch.sha256}")),
        )
        for patch in plan.patches_of(upstream)
    ]
    ancestor = _file(upstream, _pypi_purl(upstream.name, upstream.version), file=upstream.file)
    return Pedigree(ancestors=[ancestor], patches=patches)


def _tools(plan: Plan) -> Iterator[Component]:
    from cyclonedx.model.component import ComponentScope

    for tool in plan.lock.tools:
        reason = _BUILD_TOOL if tool.name in BUILD_TOOLS else _TEST_TOOL
        found = _file(tool, _pypi_purl(tool.name, tool.version), file=tool.file, excluded=reason)
        found.scope = ComponentScope.EXCLUDED
        yield found


def _file(artifact: Artifact | Wheel, purl: PackageURL, **properties: str) -> Component:
    from cyclonedx.model.component import Component

    return Component(
        name=artifact.name, version=artifact.version, purl=purl, bom_ref=str(purl), hashes=_hashes(artifact.sha256),
        properties=_properties(**properties, size_bytes=str(artifact.size)),
    )  # fmt: skip


def _pypi_purl(name: str, version: str) -> PackageURL:
    from packageurl import PackageURL

    return PackageURL("pypi", None, name, version)


def _hashes(sha256: str) -> list[HashType]:
    from cyclonedx.model import HashAlgorithm, HashType

    return [HashType(alg=HashAlgorithm.SHA_256, content=sha256)]


def _properties(**values: str) -> list[Property]:
    from cyclonedx.model import Property

    return [Property(name=f"kiln:{name}", value=value) for name, value in values.items()]
