# forescribe on NVIDIA GPUs, or on CPUs only.
#
#   docker build -t forescribe .
#   docker run --gpus all --init -p 127.0.0.1:8000:8000 -v forescribe-models:/models \
#       -v "$PWD/forescribe.toml:/etc/forescribe/forescribe.toml:ro" forescribe \
#       --settings /etc/forescribe/forescribe.toml
#
# torch's wheels contain CUDA's libraries, so the base image is plain Python; the host provides the driver
# through NVIDIA's container toolkit. See docs/endpoints.md.

FROM python:3.12-slim-bookworm AS build
WORKDIR /build
RUN python -m venv /opt/forescribe
ENV PATH=/opt/forescribe/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

# Dependencies are a layer of their own: gigabytes that change only with pyproject.toml.
COPY pyproject.toml constraints.txt ./
COPY scripts/list_requirements.py scripts/
RUN python scripts/list_requirements.py serve s3 diarize > wanted.txt \
    && pip install --requirement wanted.txt --constraint constraints.txt

COPY README.md LICENSE ./
COPY speculative speculative
COPY asr asr
COPY diarize diarize
COPY api api
COPY text text
COPY forescribe forescribe
COPY bundled bundled
COPY kernels kernels
# With the kernels for CPUs, for all instruction sets: the best one is chosen when they are loaded. The compiler
# stays in this stage, so its version is not pinned. The last line shows that they can be loaded; `-P`: by the
# installed package, not the one copied here.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/* \
    && FORESCRIBE_COMPILE=require pip install --no-deps . \
    && python -P -c 'from forescribe.speculative.native.library import load; print(load().describe())'

# Weights in the image, to start without a network: --build-arg MODELS="openai/whisper-large-v3
# distil-whisper/distil-large-v3.5". Otherwise they are downloaded into /models at the first start.
ARG MODELS=""
ENV HF_HOME=/models
RUN mkdir -p /models \
    && for model in $MODELS; do hf download "$model" || exit 1; done

FROM python:3.12-slim-bookworm
RUN useradd --uid 10001 --create-home --shell /usr/sbin/nologin forescribe \
    && mkdir -p /data /scratch \
    && chown 10001:10001 /data /scratch
COPY --from=build /opt/forescribe /opt/forescribe
COPY --from=build --chown=10001:10001 /models /models

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
