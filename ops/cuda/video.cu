// Frames of a video decoder as RGB (ops/video/nvdec.py): luma, and chroma of half the size with Cb and Cr in turns.

// A thread makes one pixel; grid (tiles). Samples have `T`'s highest `bits`. `matrix`: factor and offset of luma, Cr's
// part of red, Cb's and Cr's of green, Cb's of blue, all for values as 8 bits have them.
template <typename T>
__global__ void rgb(const T* luma, const T* chroma, long long pitch, int height, int width, float unit,
                    float luma_factor, float luma_offset, float red, float green_b, float green_r, float blue,
                    unsigned char* out) {
    const long long pixel = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (pixel >= static_cast<long long>(height) * width) return;
    const int y = static_cast<int>(pixel / width), x = static_cast<int>(pixel % width);
    const T* pair = chroma + (y / 2) * pitch + (x & ~1);
    const float light = (luma[y * pitch + x] * unit - luma_offset) * luma_factor;
    const float cb = pair[0] * unit - 128.0f, cr = pair[1] * unit - 128.0f;
    const float values[3] = {light + red * cr, light - green_b * cb - green_r * cr, light + blue * cb};
    for (int k = 0; k < 3; ++k) {
        const float value = values[k] + 0.5f;
        out[3 * pixel + k] = static_cast<unsigned char>(value < 0.0f ? 0.0f : value > 255.0f ? 255.0f : value);
    }
}
