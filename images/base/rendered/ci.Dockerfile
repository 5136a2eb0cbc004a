# Rendered by `inv render` from images/base/Dockerfile.j2: edit that, not this.
FROM scratch

# base: bookworm from the apt lock, bootstrapped offline.
ADD rootfs.tar /

SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
ARG SOURCE_DATE_EPOCH

# user: by name for people, though any uid works; written directly, so that no date enters /etc/shadow.
RUN echo 'kiln:x:1000:1000::/cache/home:/bin/bash' >> /etc/passwd \
    && echo 'kiln:x:1000:' >> /etc/group \
    && install -d -m 1777 /cache

ENV LANG=C.UTF-8 \
    LC_ALL=C.UTF-8
