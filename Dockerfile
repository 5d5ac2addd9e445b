# One image for every role: `serve` (HTTP and turns), `web`, `work`. Without API keys it refuses to listen to a network:
#
#   docker build -t smolsessions .
#   (umask 027; docker run --rm smolsessions keys owner ada > api-keys)      # shows the key itself once, beside the file
#   docker run --rm -p 8000:8000 -v smolsessions:/data -v "$PWD/api-keys:/run/api-keys:ro" --group-add "$(id -g)" \
#     -e SMOLSESSIONS_API_KEYS_FILE=/run/api-keys --read-only --stop-timeout 40 smolsessions
#
# `--group-add` lets the service read the file, which not all users may read; an engine without root takes 0 there.
# `--stop-timeout` is above SMOLSESSIONS_DRAIN_S, so that running steps may end. Any `--user` will do.
# Your own agents: FROM smolsessions, COPY my_agents.py . and ENV SMOLSESSIONS_AGENTS=name=my_agents:factory.
# Packages that they need: USER 0, RUN pip --python /opt/smolsessions install …, USER 10001:10001.
# BUILDX_GIT_LABELS=full docker build … labels an image that you publish with its source, the address of git's `origin`.
# docs/how-to/docker.md explains this, and has compose. For Kubernetes: docs/how-to/kubernetes.md.

FROM python:3.11-slim-bookworm AS build
WORKDIR /build
ENV PIP_NO_CACHE_DIR=1
COPY deploy/image/install requirements.lock ./
RUN ./install packages /opt/smolsessions && ./install init /opt/smolsessions
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY app app
RUN ./install service /opt/smolsessions /opt/service

FROM python:3.11-slim-bookworm
# Any user may write into the volume, which is the only place that is written to; the service keeps its files to itself.
RUN mkdir -m 1777 /data && mkdir /agents
# Two layers: the packages' stays the same until the lock file changes.
COPY --from=build /opt/smolsessions /opt/smolsessions
COPY --from=build /opt/service /opt/smolsessions
ENV PATH=/opt/smolsessions/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/data \
    TMPDIR=/data \
    SMOLSESSIONS_HOST=0.0.0.0 \
    SMOLSESSIONS_DATA_DIR=/data
WORKDIR /agents
VOLUME /data
EXPOSE 8000
USER 10001:10001
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import os, urllib.request as r; r.build_opener(r.ProxyHandler({})).open('http://127.0.0.1:' + (os.environ.get('SMOLSESSIONS_PORT') or '8000') + '/livez', timeout=4)"]
# tini reaps the children of killed processes and passes signals on.
ENTRYPOINT ["tini", "--", "smolsessions"]
CMD ["serve"]
