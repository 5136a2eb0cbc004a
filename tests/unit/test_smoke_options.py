"""What `inv smoke` is asked for: everything wrong is told at once, before anything starts."""

from __future__ import annotations

import json

import pytest

from kiln import oci
from kiln.errors import UserError
from kiln.settings import from_env
from kiln.smoke import image, ssh
from kiln.smoke.options import Options, require_fit, require_good
from tests.memoryregistry import MemoryRegistry

pytestmark = pytest.mark.unit
DIGEST = f"sha256:{'a' * 64}"
IMAGE = f"registry.example:5000/kiln/sglang@{DIGEST}"


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        (Options(image="registry.example:5000/kiln/sglang:0.5.23"), "has no digest, and a tag may be another image",
         "skopeo inspect --format '{{.Digest}}' docker://registry.example:5000/kiln/sglang:0.5.23"),
        (Options(image="sglang"), "'sglang' is no image in a registry", "HOST[:PORT]/REPOSITORY@sha256:…"),
        (Options(image=IMAGE, python="/usr/bin/python3"), "--image and --python exclude each other", "one of the two"),
        (Options(preset="glm5-nvpf4"), "there is no preset 'glm5-nvpf4'", "did you mean 'glm5-nvfp4'? known: "),
        (Options(topology="h200"), "there is no topology 'h200'", "known: any, h200-1x"),
        (Options(phases=("fabrik",)), "there is no phase 'fabrik'", "known: after, container, fabric"),
        (Options(phases=("fabric",)), "--phases: fabric takes an image or a Python", "--image REF@sha256:…"),
        (Options(hosts=("a", "b", "a")), "a stands there 2 times", "name each node once"),
        (Options(hosts=("-oProxyCommand=id",)), "'-oProxyCommand=id' is no host", "[USER@]HOST[:PORT]"),
        (Options(weights="/"), "--weights takes a preset", "--preset NAME"),
        (Options(weights="m", preset="glm5-nvfp4"), "'m' is not an absolute path", "looked for on each node"),
        (Options(weights="/no/such", preset="glm5-nvfp4"), "/no/such is no folder here", "config.json"),
        (Options(python="python3"), "'python3' is not an absolute path", "looked for on each node"),
        (Options(python="/no/python"), "there is no /no/python here", "with torch"),
        (Options(deadline=3), "3 s is too short", "10 s or more"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_refused_with_what_helps(options: Options, message: str, hint: str) -> None:
    with pytest.raises(UserError) as caught:
        require_good(from_env(), options)
    text = [(problem.message, problem.hint) for problem in caught.value.problems]
    assert any(message in said and hint in helps for said, helps in text), text


def test_everything_wrong_is_told_at_once() -> None:
    options = Options(hosts=("a", "a"), image="x:y", preset="none", topology="none", phases=("none",), deadline=1)
    with pytest.raises(UserError) as caught:
        require_good(from_env(), options)
    assert len(caught.value.problems) == 6


@pytest.mark.parametrize(
    "options",
    [
        Options(),
        Options(hosts=("n1", "root@n2:2222", "[fe80::1%eth0]:22"), image=IMAGE, phases=("fabric", "server")),
        Options(hosts=("n1",), weights="/models/x", preset="glm5-nvfp4", python="/opt/python"),
    ],
)
def test_good_options_are_accepted(options: Options) -> None:
    require_good(from_env(), options)


def test_preflight_and_after_are_always_run() -> None:
    assert Options(phases=("fabric",)).chosen().phases == ("preflight", "fabric", "after")
    assert Options(phases=("preflight",)).chosen().phases == ("preflight", "after")
    assert Options().chosen().preset == "tiny"
    assert Options(phases=("fabric",)).chosen().preset == ""


@pytest.mark.parametrize("name", ["n1", "n1.example", "root@n1", "user.x@10.0.0.1:2222", "[::1]", "a_b"])
def test_a_host_is_accepted(name: str) -> None:
    assert ssh.is_host(name)


@pytest.mark.parametrize("name", ["", "-v", "a b", "a;id", "$(id)", "user@-x", "n1:port", "a@b@c", "x\n-v", "::1"])
def test_what_is_no_host_is_refused(name: str) -> None:
    assert not ssh.is_host(name)


@pytest.mark.parametrize(
    ("name", "given"),
    [("n1", "n1"), ("root@n1", "root@n1"), ("n1:22", "ssh://n1:22"), ("root@[::1]:22", "ssh://root@[::1]:22")],
)
def test_only_a_name_with_a_port_becomes_an_address(name: str, given: str) -> None:
    """An alias has to stay as it is typed, or ssh would not find it in ~/.ssh/config."""
    assert ssh.address(name) == given


def registry(labels: dict[str, str]) -> tuple[MemoryRegistry, str]:
    """Return a registry with one image, and its digest."""
    config = json.dumps({"config": {"Labels": labels}}).encode()
    layer = {"mediaType": "x", "digest": f"sha256:{'0' * 64}", "size": 700}
    described = {"mediaType": "x", "digest": oci.digest_of(config), "size": len(config)}
    manifest = json.dumps({"schemaVersion": 2, "config": described, "layers": [layer, layer]}).encode()
    digest = oci.digest_of(manifest)
    found = MemoryRegistry(blobs={oci.digest_of(config): config}, manifests={digest: (manifest, oci.MANIFEST)})
    return found, digest


def test_the_registry_tells_labels_and_size_before_any_node_pulls() -> None:
    found, digest = registry({"kiln.gpu": "sm120"})
    with found.serve() as address:
        told = image.describe(f"{address}/kiln/sglang@{digest}")
    assert (told.labels, told.size_bytes, told.fault) == ({"kiln.gpu": "sm120"}, 1400, "")


def test_a_registry_that_does_not_have_the_digest_or_does_not_answer_is_told() -> None:
    found, _ = registry({})
    with found.serve() as address:
        assert image.describe(f"{address}/kiln/sglang@{DIGEST}").fault == "the registry has no such digest"
    gone = image.describe(f"127.0.0.1:9/kiln/sglang@{DIGEST}")
    assert gone.fault.startswith("the registry does not tell from here: GET manifests/sha256:")
    assert gone.labels == {}


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"kiln.pin.sglang": "0.5.9", "kiln.gpu": "sm120"}, "is for SGLang >=0.5.23,<0.6, the image has 0.5.9"),
        ({"kiln.pin.sglang": "0.5.23", "kiln.gpu": "sm90"}, "is not for the image's GPU target, sm90"),
    ],
)
def test_a_preset_that_does_not_fit_the_image_is_refused(labels: dict[str, str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        require_fit(from_env(), Options(preset="glm5-nvfp4"), labels)
    assert message in str(caught.value)


def test_a_preset_that_fits_and_an_image_of_another_maker_are_accepted() -> None:
    good = {"kiln.pin.sglang": "0.5.23", "kiln.gpu": "sm120"}
    require_fit(from_env(), Options(preset="glm5-nvfp4"), good)
    require_fit(from_env(), Options(preset="glm5-nvfp4"), {"maintainer": "somebody"})
