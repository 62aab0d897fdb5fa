// color_space_conversion (ops/color/conversion.py): a thread computes one pixel.
#include "convert.cuh"

// grid (tiles, samples): `matrix` [outputs][3] times the pixel's channels (1 or 3) plus `offset` [outputs].
extern "C" __global__ void mix(const unsigned char* source, const long long* base, const long long* pixels, int channels,
                               const float* matrix, const float* offset, int outputs, unsigned char* target,
                               const long long* out_base) {
    const int sample = blockIdx.y;
    const long long x = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (x >= pixels[sample]) return;
    const unsigned char* s = source + base[sample] + x * channels;
    const float r = s[0], g = channels > 1 ? s[1] : 0, b = channels > 1 ? s[2] : 0;
    unsigned char* o = target + out_base[sample] + x * outputs;
    for (int k = 0; k < outputs; ++k)
        o[k] = saturate<unsigned char>(matrix[3 * k] * r + matrix[3 * k + 1] * g + matrix[3 * k + 2] * b + offset[k]);
}
