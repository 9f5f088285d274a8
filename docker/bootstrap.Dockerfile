# The image of the bootstrap service, which has no torch and no numpy. From the root of the project:
#
#   docker build -f docker/bootstrap.Dockerfile -t pfl-bootstrap .
#
# Nothing here needs BuildKit.

# For the same base every time, name its digest: --build-arg BASE=python:3.11-slim@sha256:...
ARG BASE=python:3.11-slim

FROM ${BASE} AS wanted
COPY pyproject.toml docker/requirements.py docker/constraints.txt /src/
RUN python /src/requirements.py /src/pyproject.toml \
      grpcio grpcio-health-checking grpcio-reflection protobuf uvloop xxhash >/requirements.txt

FROM ${BASE} AS libraries
ARG PIP_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_TRUSTED_HOST
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
COPY --from=wanted /requirements.txt /src/constraints.txt /
RUN python -m pip install --target /opt/libraries -c /constraints.txt -r /requirements.txt

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
RUN /build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels /src \
 && python -m pip install --no-deps --no-index --target /opt/pfl /wheels/*.whl

FROM ${BASE}
# python:3.11-slim has no compiled standard library, and a container may not write one: each start and each health check
# would compile it again.
RUN python -m compileall -q -x '/(site-packages|tests?|idlelib|lib2to3|tkinter|turtledemo)/' \
      "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"
LABEL org.opencontainers.image.title="pfl-bootstrap" \
      org.opencontainers.image.description="The seed of a pfl-node swarm: a member that never trains" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 10001 pfl && useradd --uid 10001 --gid pfl --no-create-home --home-dir /var/lib/pfl pfl \
 && install -d -o pfl -g pfl -m 750 /var/lib/pfl
COPY --from=libraries /opt/libraries /opt/libraries
COPY docker/healthy.py /opt/
COPY --from=package /opt/pfl /opt/pfl
ENV PATH=/opt/pfl/bin:$PATH PYTHONPATH=/opt/pfl:/opt/libraries PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /var/lib/pfl
EXPOSE 7000/tcp 7000/udp
HEALTHCHECK --interval=30s --timeout=10s --start-period=20s --retries=3 \
    CMD ["python", "-I", "-S", "/opt/healthy.py", "127.0.0.1:7000"]
ENTRYPOINT ["pfl-bootstrap"]
CMD ["--listen", "0.0.0.0:7000"]
