# dali-run on the CPU. From the project's folder, after `make wheel`:
#   docker build -f docs/docker/cpu.Dockerfile -t dali-run .
#   docker run --rm --user $(id -u) --read-only --tmpfs /tmp -v $PWD/data:/data:ro -v $PWD/out:/out dali-run \
#       run quickstart --set data=/data/train --set out=/out/quickstart
FROM python:3.11-slim
# A wheel of `make wheel` is for the Python that built it (cp311 in its name); with another Python it compiles.
COPY build/wheel/*.whl /tmp/wheel/
RUN pip install --no-cache-dir /tmp/wheel/*.whl && rm -r /tmp/wheel
# What a spec of yours needs beyond what the wheel brings is compiled here, once, for any user of the image:
#   COPY my.yaml /specs/my.yaml
#   RUN dali-run warm /specs/my.yaml --device cpu
# Level 3 of x86-64 (2013 and later) instead of the processor that builds the image: it runs on any of them.
ENV NUMBA_CACHE_DIR=/opt/compiled NUMBA_CPU_NAME=x86-64-v3 NUMBA_CPU_FEATURES=
RUN mkdir -p /opt/compiled && dali-run warm --device cpu && chmod -R a+rX /opt/compiled
ENTRYPOINT ["dali-run"]
