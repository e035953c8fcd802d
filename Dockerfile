# One file, two images: `web` (web server, default worker, beat: no torch) and `engine` (the same plus torch,
# for the device worker). docker-compose.yml builds both. Python packages come from the lock files only.
FROM python:3.11-slim-bookworm AS web
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 \
    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 \
    RIDGELINE_MODE=multi RIDGELINE_DATA_DIR=/data STATIC_ROOT=/app/staticfiles HOME=/data NUMBA_CACHE_DIR=/data/numba \
    RIDGELINE_LOCK_DIR=/data/locks
WORKDIR /app
RUN useradd --system --uid 10001 --home-dir /data --shell /usr/sbin/nologin ridgeline \
    && install -d -m 0700 -o ridgeline /data
COPY requirements.lock ./
RUN pip install --require-hashes -r requirements.lock
COPY manage.py pyproject.toml LICENSE ./
COPY config config
COPY accounts accounts
COPY calibration calibration
COPY planner planner
COPY templates templates
COPY static static
COPY scripts scripts
# A key for this one command: settings refuse to load without one, and nothing of it stays in the image.
RUN SECRET_KEY="$(python -c 'import secrets; print(secrets.token_urlsafe(64))')" ALLOWED_HOSTS=localhost \
    RIDGELINE_DATA_DIR=/tmp/build python manage.py collectstatic --noinput --verbosity 0 && rm -rf /tmp/build
USER ridgeline
VOLUME /data
EXPOSE 8000

FROM web AS engine
# Extra words for pip, e.g. an index with CPU-only builds of torch (README.md gives the sizes).
ARG TORCH_PIP_ARGS=""
USER root
COPY requirements-engine.lock ./
RUN pip install ${TORCH_PIP_ARGS} -r requirements-engine.lock
USER ridgeline
