# forescribe on NVIDIA GPUs, or on CPUs only.
#
#   docker build -t forescribe .
#   docker run --gpus all --init -p 127.0.0.1:8000:8000 -v forescribe-models:/models \
#       -v "$PWD/forescribe.toml:/etc/forescribe/forescribe.toml:ro" forescribe \
#       --settings /etc/forescribe/forescribe.toml
#
# torch's wheels contain CUDA's libraries, so the base image is plain Python; the host provides the driver
# through NVIDIA's container toolkit. See docs/endpoints.md.

FROM python:3.12-slim-bookworm AS dependencies
WORKDIR /build
RUN python -m venv /opt/forescribe
ENV PATH=/opt/forescribe/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

# A layer of gigabytes, which changes only with pyproject.toml and constraints.txt. It is meant to be smaller
# without CUDA, which nobody has built yet: --build-arg PIP_INDEX_ARGUMENTS="--extra-index-url ADDRESS" with an
# index of torch's builds for CPUs, and TORCH="torch==VERSION torchaudio==VERSION" with those that it has.
ARG PIP_INDEX_ARGUMENTS="" TORCH=""
COPY pyproject.toml constraints.txt ./
COPY scripts/list_requirements.py scripts/
# hadolint ignore=SC2086
RUN python scripts/list_requirements.py serve s3 diarize > wanted.txt \
    && pip install $PIP_INDEX_ARGUMENTS $TORCH --requirement wanted.txt --constraint constraints.txt

# The package alone, with the kernels for CPUs, for all instruction sets: the best one is chosen when they are
# loaded. The compiler stays in this stage, so its version is not pinned.
FROM dependencies AS build
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
COPY README.md LICENSE ./
COPY speculative speculative
COPY asr asr
COPY diarize diarize
COPY api api
COPY text text
COPY forescribe forescribe
COPY bundled bundled
COPY kernels kernels
RUN FORESCRIBE_COMPILE=require pip wheel --no-deps --wheel-dir /wheels .

# Weights in the image, to start without a network: --build-arg MODELS="openai/whisper-large-v3
# distil-whisper/distil-large-v3.5". Otherwise they are downloaded into /models at the first start.
FROM dependencies AS models
ARG MODELS=""
ENV HF_HOME=/models
RUN mkdir -p /models \
    && for model in $MODELS; do hf download "$model" || exit 1; done

FROM python:3.12-slim-bookworm
RUN useradd --uid 10001 --create-home --shell /usr/sbin/nologin forescribe \
    && mkdir -p /data /scratch \
    && chown 10001:10001 /data /scratch
COPY --from=dependencies /opt/forescribe /opt/forescribe
COPY --from=models --chown=10001:10001 /models /models
# An update of forescribe changes this layer alone. The last line shows that the kernels can be loaded.
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    /opt/forescribe/bin/pip install --no-cache-dir --no-deps /wheels/*.whl \
    && /opt/forescribe/bin/python -c 'from forescribe.speculative.native.library import load; print(load().describe())'

ENV PATH=/opt/forescribe/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HF_HOME=/models \
    TMPDIR=/scratch \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    FORESCRIBE_HOST=0.0.0.0 \
    FORESCRIBE_DATA_DIR=/data

USER 10001:10001
WORKDIR /home/forescribe
VOLUME ["/models", "/data", "/scratch"]
EXPOSE 8000
STOPSIGNAL SIGTERM
# Readiness rather than liveness, so that a broken engine is detected. Loading may take minutes.
HEALTHCHECK --interval=30s --timeout=5s --start-period=15m --retries=3 \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/ready', timeout=4)"]
ENTRYPOINT ["forescribe", "serve"]
