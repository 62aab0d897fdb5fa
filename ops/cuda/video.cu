// Frames of a video decoder to RGB (ops/video/nvdec.py): luma, and interleaved Cb and Cr of half the size.

struct Surface {
    const void *luma, *chroma;
    unsigned char* out;
    long long pitch;    // bytes
    int height, width;  // of luma
    // A sample times `unit` has the scale of 8 bits; then factor and offset of luma, Cr's factor for red, Cb's and Cr's
    // for green, Cb's for blue.
    float unit, luma_factor, luma_offset, red, green_b, green_r, blue;
};

// A thread computes one pixel; grid (tiles). Samples are in the highest bits of `T`.
template <typename T>
__global__ void rgb(const Surface s) {
    const long long pixel = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (pixel >= static_cast<long long>(s.height) * s.width) return;
    const int y = static_cast<int>(pixel / s.width), x = static_cast<int>(pixel % s.width);
    const long long pitch = s.pitch / static_cast<long long>(sizeof(T));
    const T* pair = static_cast<const T*>(s.chroma) + (y / 2) * pitch + (x & ~1);
    const float light = (static_cast<const T*>(s.luma)[y * pitch + x] * s.unit - s.luma_offset) * s.luma_factor;
    float cb = pair[0], cr = pair[1];
    if (sizeof(T) > 1) {  // like FFmpeg's converter: interpolate between chroma rows, which are repeated for 8 bits
        const int other = y & 1 ? min(y / 2 + 1, s.height / 2 - 1) : max(y / 2 - 1, 0);
        const T* beside = static_cast<const T*>(s.chroma) + other * pitch + (x & ~1);
        cb = 0.75f * cb + 0.25f * beside[0], cr = 0.75f * cr + 0.25f * beside[1];
    }
    cb = cb * s.unit - 128.0f, cr = cr * s.unit - 128.0f;
    const float values[3] = {light + s.red * cr, light - s.green_b * cb - s.green_r * cr, light + s.blue * cb};
    for (int k = 0; k < 3; ++k) {
        const float value = values[k] + 0.5f;
        s.out[3 * pixel + k] = static_cast<unsigned char>(value < 0.0f ? 0.0f : value > 255.0f ? 255.0f : value);
    }
}
