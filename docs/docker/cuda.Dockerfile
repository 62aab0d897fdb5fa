# dali-run on NVIDIA GPUs. From the project's folder, after `make wheel`:
#   docker build -f docs/docker/cuda.Dockerfile -t dali-run-cuda .
#   docker run --rm --gpus all --user $(id -u) --read-only --tmpfs /tmp -v $PWD/data:/data:ro -v $PWD/out:/out \
#       dali-run-cuda run quickstart --set data=/data/train --set out=/out/quickstart
# No CUDA base image: CuPy, NVRTC, nvJPEG and the runtime come as wheels; the driver comes with the container toolkit.
FROM python:3.11-slim
COPY build/wheel/*.whl /tmp/wheel/
# cuda13 for drivers of CUDA 13 (580 and later), cuda12 for older ones (`make wheel CUDA=12`).
ARG CUDA=cuda13
RUN pip install --no-cache-dir "$(ls /tmp/wheel/*.whl)[$CUDA]" && rm -r /tmp/wheel
ENV NUMBA_CACHE_DIR=/opt/compiled NUMBA_CPU_NAME=x86-64-v3 NUMBA_CPU_FEATURES=
RUN mkdir -p /opt/compiled && dali-run warm --device cpu && chmod -R a+rX /opt/compiled
# Expressions and kernels that are in no list are compiled when first launched; CuPy keeps them here if it can.
ENV CUPY_CACHE_DIR=/tmp/cupy NVIDIA_DRIVER_CAPABILITIES=compute,utility,video
ENTRYPOINT ["dali-run"]
