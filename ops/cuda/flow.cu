// Images for the GPU's optical flow engine, and its vectors (ops/sequences/nvofa.py). Rows of the engine's surfaces are
// `pitch` bytes apart; all other data is packed. Each block works on one of many copies.

struct Copy {
    const void* from;
    void* to;
};

// Find the copy on which this block works, and the pixel (of `size`) of this thread; false if there is none.
__device__ __forceinline__ bool mine(const Copy* copies, long long size, Copy& copy, long long& pixel) {
    const long long tiles = (size + blockDim.x - 1) / blockDim.x;
    copy = copies[blockIdx.x / tiles];
    pixel = blockIdx.x % tiles * blockDim.x + threadIdx.x;
    return pixel < size;
}

// Convert images of three channels, channel `red` of which is red (0 or 2), to four bytes per pixel: red, green, blue,
// 255.
extern "C" __global__ void flow_colors(const Copy* copies, int height, int width, int pitch, int red) {
    Copy copy;
    long long pixel;
    if (!mine(copies, static_cast<long long>(height) * width, copy, pixel)) return;
    const unsigned char* from = static_cast<const unsigned char*>(copy.from) + 3 * pixel;
    const unsigned value = from[red] | from[1] << 8 | from[2 - red] << 16 | 255u << 24;
    char* row = static_cast<char*>(copy.to) + pixel / width * pitch;
    reinterpret_cast<unsigned*>(row)[pixel % width] = value;
}

// Copy images of one channel.
extern "C" __global__ void flow_gray(const Copy* copies, int height, int width, int pitch) {
    Copy copy;
    long long pixel;
    if (!mine(copies, static_cast<long long>(height) * width, copy, pixel)) return;
    unsigned char* row = static_cast<unsigned char*>(copy.to) + pixel / width * pitch;
    row[pixel % width] = static_cast<const unsigned char*>(copy.from)[pixel];
}

// Convert vectors (x, y) of the engine, in 32nds of a pixel, to pixels.
extern "C" __global__ void flow_vectors(const Copy* copies, int height, int width, int pitch) {
    Copy copy;
    long long cell;
    if (!mine(copies, static_cast<long long>(height) * width, copy, cell)) return;
    const char* row = static_cast<const char*>(copy.from) + cell / width * pitch;
    const short* vector = reinterpret_cast<const short*>(row) + 2 * (cell % width);
    float* to = static_cast<float*>(copy.to) + 2 * cell;
    to[0] = vector[0] * (1.0f / 32), to[1] = vector[1] * (1.0f / 32);
}

// Convert vectors in pixels to the nearest ones that the engine can represent.
extern "C" __global__ void flow_hints(const Copy* copies, int height, int width, int pitch) {
    Copy copy;
    long long cell;
    if (!mine(copies, static_cast<long long>(height) * width, copy, cell)) return;
    const float* from = static_cast<const float*>(copy.from) + 2 * cell;
    char* row = static_cast<char*>(copy.to) + cell / width * pitch;
    short* vector = reinterpret_cast<short*>(row) + 2 * (cell % width);
    for (int k = 0; k < 2; ++k)
        vector[k] = static_cast<short>(rintf(fminf(fmaxf(from[k] * 32.0f, -32768.0f), 32767.0f)));
}
