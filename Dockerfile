# The image of workers, Flower and the command line. Not built by the tests; add your training framework in an image on top:
#   FROM flowctl:local
#   USER root
#   RUN pip install --no-cache-dir torch
#   USER flowctl
FROM python:3.12-slim AS wheel
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim
ENV PYTHONUNBUFFERED=1 FLOWCTL_HOME=/var/lib/flowctl
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    pip install --no-cache-dir "$(echo /wheels/*.whl)[s3,flower]" \
    && useradd --create-home --uid 1000 flowctl \
    && install -d -m 0700 -o flowctl /var/lib/flowctl \
    && install -d -o flowctl /runs
USER flowctl
WORKDIR /home/flowctl
VOLUME /runs
ENTRYPOINT ["flowctl"]
CMD ["--help"]
