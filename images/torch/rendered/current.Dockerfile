# Rendered by `inv render` from images/torch/Dockerfile.j2: edit that, not this.
ARG PARENT
FROM ${PARENT}

SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
ARG SOURCE_DATE_EPOCH

# wheels: torch 2.14.1 and what it needs.
RUN --mount=type=bind,source=wheels,target=/run/kiln/wheels \
    --mount=type=bind,source=tools,target=/run/kiln/tools \
    --mount=type=bind,source=requirements.txt,target=/run/kiln/requirements.txt \
    /run/kiln/tools/uv pip install --python /opt/kiln/bin/python \
        --offline --no-cache --no-index --find-links /run/kiln/wheels \
        --require-hashes --no-deps --no-installer-metadata --link-mode copy --compile-bytecode \
        --requirements /run/kiln/requirements.txt
