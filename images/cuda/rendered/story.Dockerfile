# Rendered by `inv render` from images/cuda/Dockerfile.j2: edit that, not this.
ARG PARENT
FROM ${PARENT}

SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
ARG SOURCE_DATE_EPOCH

ENV VIRTUAL_ENV=/opt/kiln \
    PATH=/opt/kiln/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

# venv: the one Python environment that all later images install into.
RUN python3 -m venv --without-pip /opt/kiln

# wheels: compiler, headers and libraries of CUDA 13.0 for the kernels, those of CUDA 12.8 for torch.
RUN --mount=type=bind,source=wheels,target=/run/kiln/wheels \
    --mount=type=bind,source=tools,target=/run/kiln/tools \
    --mount=type=bind,source=requirements.txt,target=/run/kiln/requirements.txt \
    /run/kiln/tools/uv pip install --python /opt/kiln/bin/python \
        --offline --no-cache --no-index --find-links /run/kiln/wheels \
        --require-hashes --no-deps --no-installer-metadata --link-mode copy --compile-bytecode \
        --requirements /run/kiln/requirements.txt

# toolkit: complete the wheels' own tree and link it as /usr/local/cuda, so that there is one toolkit and no copy.
RUN --mount=type=bind,source=recipe,target=/run/kiln/recipe \
    /opt/kiln/bin/python /run/kiln/recipe/complete_toolkit.py \
        --nvidia /opt/kiln/lib/python3.11/site-packages/nvidia --link /usr/local/cuda \
    && echo /usr/local/cuda/lib64 > /etc/ld.so.conf.d/kiln-cuda.conf \
    && ldconfig

ENV CUDA_HOME=/usr/local/cuda \
    CUDA_PATH=/usr/local/cuda
