"""Every patched file is in the image as its patches left it: no wheel that came later wrote over it."""

from __future__ import annotations

from typing import Any

from tests.image.conftest import SITE

# Reads {file: sha256} below `site` from `wanted`; prints what differs, with what is there instead.
DIFFERING = """
import hashlib, json, pathlib
def there(path):
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""
found = {{file: there(pathlib.Path({site!r}, file)) for file in {wanted!r}}}
print(json.dumps({{file: found[file] for file, sha256 in {wanted!r}.items() if found[file] != sha256}}))
"""


def test_every_patched_file_is_as_its_patches_left_it(python: Any, plan: dict[str, Any]) -> None:
    assert python(DIFFERING.format(site=SITE, wanted=plan["patched_files"])) == {}
