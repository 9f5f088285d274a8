# The image of a node. From the root of the project:
#
#   docker build -f docker/node.Dockerfile -t pfl-node .
#
# --build-arg TORCH_BUILD=cpu    the build of torch with this name (2.13.0+cpu), where pip finds one; otherwise the one
#                                that the package index has, which on x86-64 is the build with CUDA, several GB large.
#                                Where CPU builds are is said on the command line: --build-arg PIP_EXTRA_INDEX_URL=...
#                                or PIP_FIND_LINKS=... (docs/docker.md)
# --build-arg TORCH_BUILD=cuda   the index's own; or cu126 and so on, with the index that has it
# --build-arg EXTRAS=...         more for pip to install, for a task of your own: EXTRAS="pandas pillow"
#
# Nothing here needs BuildKit. Layers from the rarest change to the most frequent one: torch, the other libraries, us.

# For the same base every time, name its digest: --build-arg BASE=python:3.11-slim@sha256:...
ARG BASE=python:3.11-slim

FROM ${BASE} AS wanted
COPY pyproject.toml docker/requirements.py docker/constraints.txt /src/
RUN python /src/requirements.py /src/pyproject.toml >/requirements.txt

FROM ${BASE} AS torch
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_TRUSTED_HOST
ARG TORCH_VERSION=2.13.0
ARG TORCH_BUILD=cpu
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
COPY docker/constraints.txt /src/
RUN python -m venv --without-pip /opt/python \
 && install="python -m pip --python /opt/python/bin/python install -c /src/constraints.txt" \
 && { $install "torch==${TORCH_VERSION}+${TORCH_BUILD}" || $install "torch===${TORCH_VERSION}"; } \
 && cd /opt/python/lib/python3*/site-packages/torch && rm -rf include share test \
 && find bin -type f ! -name torch_shm_manager -delete

FROM ${BASE} AS libraries
ARG PIP_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_TRUSTED_HOST
ARG EXTRAS
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
COPY --from=wanted /requirements.txt /src/constraints.txt /
RUN python -m pip install --target /opt/libraries -c /constraints.txt -r /requirements.txt ${EXTRAS} \
 && find /opt/libraries/scipy /opt/libraries/sklearn -type d -name tests -prune -exec rm -rf {} +

FROM ${BASE} AS package
ARG PIP_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_TRUSTED_HOST
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
COPY docker/constraints.txt /src/
RUN python -m venv /build && /build/bin/pip install -c /src/constraints.txt hatchling
COPY pyproject.toml README.md LICENSE /src/
COPY bootstrap /src/bootstrap
COPY pfl_node /src/pfl_node
RUN python -m venv --without-pip /opt/python \
 && /build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels /src \
 && python -m pip --python /opt/python/bin/python install --no-deps --no-index --target /opt/pfl /wheels/*.whl

FROM ${BASE}
# python:3.11-slim has no compiled standard library, and a container may not write one: each start and each health check
# would compile it again.
RUN python -m compileall -q -x '/(site-packages|tests?|idlelib|lib2to3|tkinter|turtledemo)/' \
      "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"
LABEL org.opencontainers.image.title="pfl-node" \
      org.opencontainers.image.description="One node of a peer-to-peer swarm for personalized federated learning" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 10001 pfl && useradd --uid 10001 --gid pfl --no-create-home --home-dir /var/lib/pfl pfl \
 && install -d -o pfl -g pfl -m 750 /var/lib/pfl /ca /seed # the last two for certificates.py only
COPY --from=torch /opt/python /opt/python
COPY --from=libraries /opt/libraries /opt/libraries
COPY docker/healthy.py docker/certificates.py /opt/
COPY --from=package /opt/pfl /opt/pfl
ENV PATH=/opt/pfl/bin:/opt/python/bin:$PATH PYTHONPATH=/opt/pfl:/opt/libraries \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
USER 10001:10001
WORKDIR /var/lib/pfl
EXPOSE 7946/tcp 7946/udp
# A node has three minutes to load torch, in which failures do not count; one that hangs later is unhealthy within 90 s:
# twice 30 s until the check and up to 14 s in it (10 s of asking, and 4 s for the last answer). In the start period,
# Docker 25 and newer start the next check 5 s after the last one, at 60 ms of CPU; --wait makes that one in 15 s.
# --start-interval would, too, but makes older builders refuse this file.
HEALTHCHECK --interval=30s --timeout=20s --start-period=180s --retries=2 \
    CMD ["python", "-I", "-S", "/opt/healthy.py", "127.0.0.1:7946", "--wait", "10"]
ENTRYPOINT ["pfl-node"]
CMD ["--listen", "0.0.0.0:7946"]
