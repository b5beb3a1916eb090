# timer-service in a container: it does not run as root and writes only to /data.
#
#     docker build --tag timer-service .
#     docker run --read-only --volume timer-data:/data --env TIMER_BROKER_URL=nats://… timer-service

FROM python:3.11-slim-bookworm AS build

# The versions that the tests ran with, for what is installed and for what builds it.
COPY constraints.txt /build/
ENV PIP_CONSTRAINT=/build/constraints.txt \
    PIP_BUILD_CONSTRAINT=/build/constraints.txt \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1

WORKDIR /build
COPY pyproject.toml README.md LICENSE ./
COPY migrations migrations
COPY client client
COPY src src
RUN python -m venv /opt/timer-service && /opt/timer-service/bin/pip install ./client '.[postgres]'


FROM python:3.11-slim-bookworm

# Its own user id, so that a volume keeps the same owner; /data is the only place it may write to.
RUN groupadd --system --gid 10001 timer \
    && useradd --system --uid 10001 --gid timer --home-dir /data --no-create-home --shell /usr/sbin/nologin timer \
    && install --directory --owner=timer --group=timer --mode=0750 /data

COPY --from=build /opt/timer-service /opt/timer-service

ENV PATH=/opt/timer-service/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    TIMER_DB_PATH=/data/timers.db \
    TIMER_HTTP_HOST=0.0.0.0 \
    TIMER_HTTP_PORT=8080

USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 8080
STOPSIGNAL SIGTERM

# /livez, not /readyz: the container must not be restarted because the broker is down.
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as http; http.urlopen(f'http://127.0.0.1:{os.environ[\"TIMER_HTTP_PORT\"]}/livez', timeout=4)"]

ENTRYPOINT ["timer-service"]
CMD ["run"]
