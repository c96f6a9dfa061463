# nextn on CPUs: docker build -t nextn . && docker run --rm -p 30000:30000 nextn
#
# The kernels are compiled for every kind of CPU and chosen when it starts. On Linux the plain torch package brings
# CUDA's libraries, gigabytes of them; with --build-arg TORCH="torch==2.13.0 --index-url <PyTorch's CPU index>" it
# does not.
FROM python:3.11-slim AS build
ARG TORCH="torch==2.13.0"
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/nextn
ENV PATH=/opt/nextn/bin:$PATH
RUN pip install --no-cache-dir ${TORCH} && pip install --no-cache-dir numpy
WORKDIR /src
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY csrc csrc
COPY nextn nextn
RUN pip install --no-cache-dir '.[trace]'

FROM python:3.11-slim
RUN apt-get update && apt-get install -y --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home nextn
COPY --from=build /opt/nextn /opt/nextn
ENV PATH=/opt/nextn/bin:$PATH PYTHONUNBUFFERED=1
USER nextn
EXPOSE 30000
STOPSIGNAL SIGTERM
HEALTHCHECK --start-period=300s CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:30000/readyz')"]
# Options go after the image's name: docker run … nextn --model-path /models/mine
ENTRYPOINT ["nextn", "serve", "--host", "0.0.0.0"]
