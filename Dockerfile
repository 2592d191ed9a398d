# The worker. Configuration is mounted at /etc/wideload/wideload.toml; see docs/deployment.md.

FROM python:3.11.14-slim-bookworm@sha256:65a93d69fa75478d554f4ad27c85c1e69fa184956261b4301ebaf6dbb0a3543d AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
# Without pip, which the worker does not need; `pip --python` installs packages from outside.
RUN python -m venv --without-pip /opt/wideload
COPY requirements.lock requirements-dev.lock ./
RUN pip --python /opt/wideload install --require-hashes --no-deps -r requirements.lock
# The build tool of the package is pinned by its hashes too.
RUN awk '/^[^ ]/ {wanted = /^setuptools==/} wanted' requirements-dev.lock > build.lock \
    && pip install --require-hashes --no-deps -r build.lock
COPY pyproject.toml README.md LICENSE ./
COPY package package
COPY wideload wideload
COPY app app
COPY jobs jobs
COPY stores stores
COPY transforms transforms
COPY docs docs
RUN pip wheel --no-build-isolation --no-deps --wheel-dir wheels . \
    && pip --python /opt/wideload install --no-index --no-deps wheels/*.whl

FROM python:3.11.14-slim-bookworm@sha256:65a93d69fa75478d554f4ad27c85c1e69fa184956261b4301ebaf6dbb0a3543d
LABEL org.opencontainers.image.title="wideload" \
      org.opencontainers.image.description="A claim-check worker for Kafka: it offloads large values to a payload store, and inflates them again." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.1.0"
RUN python -m pip uninstall --yes --root-user-action=ignore pip setuptools wheel
COPY --from=build /opt/wideload /opt/wideload
ENV PATH=/opt/wideload/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# A number, so that Kubernetes can check runAsNonRoot.
USER 10001:10001
WORKDIR /tmp
EXPOSE 6066
STOPSIGNAL SIGTERM
# Live, not ready: a restart would only prolong an outage of a broker or a store.
HEALTHCHECK --interval=15s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-ISc", "import http.client as h; c = h.HTTPConnection('127.0.0.1', 6066, timeout=4); c.request('GET', '/health/live'); raise SystemExit(c.getresponse().status != 200)"]
ENTRYPOINT ["wideload"]
CMD ["worker", "-c", "/etc/wideload/wideload.toml"]
