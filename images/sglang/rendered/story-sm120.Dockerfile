# Rendered by `inv render` from images/sglang/Dockerfile.j2: edit that, not this.
ARG PARENT
FROM ${PARENT}

SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
ARG SOURCE_DATE_EPOCH

# wheels: SGLang 0.5.9 and everything that no image below installed.
RUN --mount=type=bind,source=wheels,target=/run/kiln/wheels \
    --mount=type=bind,source=tools,target=/run/kiln/tools \
    --mount=type=bind,source=requirements.txt,target=/run/kiln/requirements.txt \
    /run/kiln/tools/uv pip install --python /opt/kiln/bin/python \
        --offline --no-cache --no-index --find-links /run/kiln/wheels \
        --require-hashes --no-deps --no-installer-metadata --link-mode copy --compile-bytecode \
        --requirements /run/kiln/requirements.txt

# cache: the folders of HOME and TMPDIR, for whoever overrides the entrypoint; any user may write there.
RUN install -d -m 1777 /cache/home /cache/tmp

# serve: passes its arguments to the stack's launcher.
COPY --chmod=0755 recipe/kiln-serve /opt/kiln/bin/kiln-serve

# health: 0 only if every process is alive and a generation of its own came back whole.
COPY --chmod=0755 recipe/kiln-health /opt/kiln/bin/kiln-health

# caches: everything that is written at run time lies below /cache: mount a volume there and keep the root read-only.
ENV HOME=/cache/home \
    USER=kiln \
    LOGNAME=kiln \
    TMPDIR=/cache/tmp \
    XDG_CACHE_HOME=/cache/xdg \
    HF_HOME=/cache/huggingface \
    SGLANG_CACHE_DIR=/cache/sglang \
    FLASHINFER_WORKSPACE_BASE=/cache/flashinfer \
    TRITON_CACHE_DIR=/cache/triton \
    TORCHINDUCTOR_CACHE_DIR=/cache/inductor \
    TORCH_EXTENSIONS_DIR=/cache/torch_extensions \
    CUDA_CACHE_PATH=/cache/cuda \
    TILELANG_CACHE_DIR=/cache/tilelang \
    TVM_FFI_CACHE_DIR=/cache/tvm-ffi \
    CUTE_DSL_CACHE_DIR=/cache/cute_dsl \
    QUACK_CACHE_DIR=/cache/quack \
    HUMMING_CACHE_DIR=/cache/humming \
    NUMBA_CACHE_DIR=/cache/numba

# norm: the compiled module of this image; FlashInfer's default compiles a CuTe kernel anew in every process.
ENV FLASHINFER_USE_CUDA_NORM=1 \
    KILN_LAUNCHER="python -m sglang.launch_server"

USER 1000:1000
WORKDIR /cache
EXPOSE 30000
HEALTHCHECK --interval=30s --timeout=60s \
    --start-period=1800s --retries=3 \
    CMD ["kiln-health"]
ENTRYPOINT ["/usr/bin/tini", "-g", "--", "kiln-serve"]
