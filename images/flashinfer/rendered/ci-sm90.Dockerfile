# Rendered by `inv render` from images/flashinfer/Dockerfile.j2: edit that, not this.
ARG PARENT
FROM ${PARENT} AS deps

SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
ARG SOURCE_DATE_EPOCH

# wheels: what FlashInfer needs to build and to run.
RUN --mount=type=bind,source=wheels,target=/run/kiln/wheels \
    --mount=type=bind,source=tools,target=/run/kiln/tools \
    --mount=type=bind,source=requirements.txt,target=/run/kiln/requirements.txt \
    /run/kiln/tools/uv pip install --python /opt/kiln/bin/python \
        --offline --no-cache --no-index --find-links /run/kiln/wheels \
        --require-hashes --no-deps --no-installer-metadata --link-mode copy --compile-bytecode \
        --requirements /run/kiln/requirements.txt

# kernels: FlashInfer 0.7.2 from source for 9.0a, kernel set ci, as a wheel.
FROM deps AS kernels
ARG LOCAL_VERSION
RUN --mount=type=bind,source=sources,target=/run/kiln/sources \
    --mount=type=bind,source=tools,target=/run/kiln/tools \
    --mount=type=bind,source=recipe,target=/run/kiln/recipe \
    --mount=type=bind,source=modules.txt,target=/run/kiln/modules.txt \
    --mount=type=cache,id=kiln-ccache,target=/run/kiln/ccache \
    --mount=type=secret,id=kiln-jobs,target=/run/kiln/jobs \
    CCACHE_DIR=/run/kiln/ccache /opt/kiln/bin/python /run/kiln/recipe/build_wheel.py \
        --source /run/kiln/sources/flashinfer.tar \
        --arch "9.0a" \
        --modules /run/kiln/modules.txt \
        --local-version "${LOCAL_VERSION}" \
        --jobs-file /run/kiln/jobs \
        --ccache /run/kiln/tools/ccache \
        --out /out

# flashinfer: the wheel alone enters the image; no source, object or cache does.
FROM deps
RUN --mount=type=bind,from=kernels,source=/out,target=/run/kiln/out \
    --mount=type=bind,source=tools,target=/run/kiln/tools \
    /run/kiln/tools/uv pip install --python /opt/kiln/bin/python \
        --offline --no-cache --no-index --find-links /run/kiln/out \
        --no-deps --no-installer-metadata --link-mode copy --compile-bytecode flashinfer-python

# arch: the same value at build time and at run time, or FlashInfer looks in another place.
ENV FLASHINFER_CUDA_ARCH_LIST="9.0a" \
    TORCH_CUDA_ARCH_LIST="9.0a" \
    CUDAARCHS="90a"
