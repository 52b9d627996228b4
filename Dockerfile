# A container with fairseq, this plugin and its recipes, for a CPU or a GPU:
#
#   docker build -t fairseq-headgates .
#   docker run --rm fairseq-headgates make demo
#
# Build arguments:
#   TORCH_SPEC=torch==2.11.0        torch with CUDA; the default is torch for CPUs
#   BASE=python:3.11-slim-bookworm  another image with apt, and Python 3.10 to 3.13 with venv and headers
ARG BASE=python:3.12-slim-bookworm

FROM ${BASE} AS build
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends g++ make \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/fairseq-headgates
COPY . .
ARG TORCH_SPEC=
ENV EXTRAS=fairseq,recipes,plots,ctranslate2
RUN make setup

FROM ${BASE}
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends curl make \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home --non-unique --uid 1000 headgates
COPY --from=build --chown=1000:1000 /opt/fairseq-headgates /opt/fairseq-headgates
# With `docker run --user`, the user may have neither a home nor a name.
ENV EXTRAS=fairseq,recipes,plots,ctranslate2 \
    HOME=/tmp \
    LOGNAME=headgates \
    PATH=/opt/fairseq-headgates/.venv/bin:${PATH}
WORKDIR /opt/fairseq-headgates
USER 1000
CMD ["headgates", "--help"]
